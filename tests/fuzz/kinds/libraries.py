"""Steps that use libraries from outside, where they are installed."""

from __future__ import annotations

import importlib.util

from tests.fuzz.choices import Choices
from tests.fuzz.kinds.piece import Kind, Piece

__all__ = ["KINDS"]


def arrays(c: Choices, n: int) -> Piece:
    """NumPy, on objects of the program."""
    text = f"""
class Stats{n}:
    def __init__(self):
        self.mean = np.zeros(4)
        self.count = 0

    def update(self, values):
        self.count += 1
        self.mean += (values - self.mean) / self.count

    def __array__(self, dtype=None, copy=None):
        return self.mean
"""
    return Piece(
        text,
        f"stats{n} = Stats{n}()\narray{n} = np.arange(4.0)",
        [
            f"stats{n}.update(x.numpy(){c.pick(('', '.copy()', ' * 2'))})",
            f"stats{n}.update(x.detach().cpu().numpy())",
            f"array{n}[stats{n}.count % 4] = total",
            f"array{n}[:] = array{n} * 0.5 + 1",
            f"total += float(np.asarray(stats{n}).sum())",
            f"total += float(np.dot(array{n}, stats{n}.mean))",
            f"x = x + torch.from_numpy(array{n}).float()",
            f"x = x * torch.as_tensor(stats{n}.mean).float()",
            f"total += np.argmax(array{n})",
            "total += np.random.rand()",
        ],
        [f"stats{n}.count", f"float(stats{n}.mean[0])", f"float(array{n}.max())", f"array{n}[1]", f"len(array{n})"],
        [f"array{n}[0] = 3", f"stats{n}.count = 1"],
        [f"stats{n}", f"array{n}"],
    )


def graphs(c: Choices, n: int) -> Piece:
    """networkx."""
    make = c.pick(("Graph", "DiGraph"))
    return Piece(
        "",
        f"net{n} = nx.{make}([(0, 1), (1, 2), (2, 3)])\nnx.set_node_attributes(net{n}, 1.0, 'w')",
        [
            f"net{n}.add_edge({c.between(0, 3)}, {c.between(0, 4)}, weight=total)",
            f"net{n}.add_node(len(net{n}) % 6, w=0.5)",
            f"if net{n}.has_edge(0, 1):\n    net{n}.remove_edge(0, 1)",
            f"net{n}.nodes[1]['w'] = 0.5 * net{n}.nodes[1].get('w', 1.0) + 1",
            f"for node{n} in net{n}:\n    total = 0.5 * total + net{n}.degree(node{n})",
            f"for a{n}, b{n}, d{n} in net{n}.edges(data=True):\n    total += d{n}.get('weight', 1) * 0.1",
            f"total += len(nx.descendants(nx.DiGraph(net{n}), 1))",
            f"total += sum(nx.degree_centrality(net{n}).values())",
            f"sub{n} = net{n}.subgraph([1, 2])\ntotal += sub{n}.number_of_edges()",
        ],
        [
            f"net{n}.number_of_edges()",
            f"len(net{n})",
            f"net{n}.degree(1)",
            f"sum(1 for _ in net{n}.neighbors(1))",
            f"net{n}.nodes[1].get('w', 0.5)",
            f"float(nx.has_path(net{n}, 1, 3))",
        ],
        [f"net{n}.add_edge(3, 1)", f"net{n}.nodes[1]['w'] = 3.0"],
        [f"net{n}._adj", f"net{n}._node"],
    )


def learners(c: Choices, n: int) -> Piece:
    """scikit-learn."""
    return Piece(
        "",
        f"""
scaler{n} = sklearn.preprocessing.StandardScaler()
scaler{n}.partial_fit(np.arange(8.0).reshape(2, 4))
labels{n} = sklearn.preprocessing.LabelEncoder().fit(["a", "b", "c"])
true{n} = np.array([0, 1, 1, 0])
""",
        [
            f"scaler{n}.partial_fit(x.detach().numpy().reshape(1, 4))",
            f"x = torch.as_tensor(scaler{n}.transform(x.detach().numpy().reshape(1, 4))[0]).float()",
            f"total += sklearn.metrics.accuracy_score(true{n}, (x > 0).long().numpy())",
            f"total += sklearn.metrics.f1_score(true{n}, (x.numpy() > 0).astype(int), zero_division=0)",
            f"total += int(labels{n}.transform(['b'])[0])",
            f"true{n}[{c.below(4)}] ^= 1",
        ],
        [f"float(scaler{n}.mean_[0])", f"int(scaler{n}.n_samples_seen_)", f"len(labels{n}.classes_)", f"true{n}.sum()"],
        [f"true{n}[0] = 1"],
        [f"scaler{n}.mean_", f"scaler{n}.n_samples_seen_", f"true{n}"],
    )


def frames(c: Choices, n: int) -> Piece:
    """pandas."""
    return Piece(
        "",
        f"frame{n} = pd.DataFrame({{'a': [1.0, 2.0], 'b': [3.0, 4.0]}})\nseries{n} = frame{n}['a'].copy()",
        [
            f"frame{n}.loc[len(frame{n}) % 4] = [total, 1.0]",
            f"frame{n}['c'] = frame{n}['a'] * 2",
            f"frame{n}.a += 1",
            f"series{n}.iloc[0] = total",
            f"total += frame{n}['a'].mean()",
            f"total += frame{n}.groupby('b').a.sum().iloc[0]",
            f"for row{n} in frame{n}.itertuples():\n    total = 0.5 * total + row{n}.a",
            f"x = x + torch.as_tensor(frame{n}['b'].to_numpy()[:1]).float()",
        ],
        [f"len(frame{n})", f"float(frame{n}['a'].iloc[0])", f"float(series{n}.sum())", f"frame{n}.shape[1]"],
        [f"frame{n}.loc[0, 'a'] = 5.0"],
        [f"lambda: frame{n}.to_numpy()", f"lambda: series{n}.to_numpy()"],
    )


def words(c: Choices, n: int) -> Piece:
    """nltk, without any of its data."""
    return Piece(
        "",
        f"""
stem{n} = nltk.stem.PorterStemmer()
freq{n} = nltk.FreqDist(["a", "b", "a"])
tree{n} = nltk.Tree.fromstring("(S (NP I) (VP (V run)))")
""",
        [
            f"freq{n}[stem{n}.stem({c.pick(('running', 'cats', 'a'))!r})] += 1",
            f"for leaf{n} in tree{n}.leaves():\n    total = 0.5 * total + len(leaf{n})",
            f"total += len(list(tree{n}.subtrees()))",
            f"tree{n}[0] = nltk.Tree('NP', ['you'])",
            "total += len(nltk.wordpunct_tokenize('a b. c'))",
            "total += nltk.edit_distance('abc', 'abd')",
        ],
        [f"freq{n}['a']", f"freq{n}.freq('a')", f"freq{n}.N()", f"tree{n}.height()", f"len(tree{n})"],
        [f"freq{n}['b'] += 2"],
        [f"dict(freq{n})", f"str(tree{n})"],
    )


_WEIGHTS: tuple[tuple[int, Kind, str], ...] = (
    (2, arrays, "numpy"),
    (2, graphs, "networkx"),
    (1, learners, "sklearn"),
    (2, frames, "pandas"),
    (1, words, "nltk"),
)
KINDS: tuple[tuple[int, Kind], ...] = tuple(
    (weight, kind) for weight, kind, library in _WEIGHTS if importlib.util.find_spec(library) is not None
)
