"""Steps over trees and batches of trees: classes and numbers of nodes, results for each tree."""
