"""Reports for users: what was assumed, why, what failed, and what to do about it."""

from torchjanus.report.explanation import Explanation, explain

__all__ = ["Explanation", "explain"]
