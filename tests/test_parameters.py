"""A function that takes keywords of the program's has no parameter of its own that one of them could name."""

import ast
from pathlib import Path

import torchjanus

PACKAGE = Path(torchjanus.__file__).parent

# They stand in for functions of torch, or for methods of Python's, whose parameters have these very names; or they are
# given keywords of ours only.
THEIR_OWN = {
    ("graph/operators/batched_numbers.py", "_tensor"),
    ("graph/operators/batched_numbers.py", "_full"),
    ("graph/operators/linspace.py", "linspace"),
    ("graph/operators/number_operands.py", "full"),
    ("graph/operators/number_operands.py", "full_like"),
    ("graph/recursion/entry_loops/columns.py", "as_it_is"),
    ("graph/operators/stand_ins.py", "_tensor"),
    ("graph/operators/stand_ins.py", "_as_tensor"),
    ("graph/operators/stand_ins.py", "_new_tensor"),
    ("graph/operators/stand_ins.py", "_rounded"),
    ("graph/operators/stand_ins.py", "_as_rounded"),
    ("graph/operators/stand_ins.py", "_new_rounded"),
    ("graph/operators/stand_ins.py", "_full"),
    ("graph/operators/stand_ins.py", "tensor_given"),
    ("runtime/saving.py", "load"),
    ("trace/rewriting.py", "made"),
    ("graph/lowering/common_prefix.py", "finish"),
    ("semantics/containers/number_rows.py", "made_as"),
    ("semantics/native/container_methods.py", "_pop"),
    ("semantics/watch/objects/frame_readers.py", "_warn"),
}


def consumers(tree):
    """The functions of a module that take any keyword, with the names of those parameters that a keyword could be."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) and node.args.kwarg is not None:
            named = [parameter.arg for parameter in (*node.args.args, *node.args.kwonlyargs)]
            yield getattr(node, "name", "<lambda>"), named


def test_no_keyword_of_the_program_is_taken_for_a_parameter_of_ours():
    found, used = [], set()
    for path in sorted(PACKAGE.rglob("*.py")):
        where = path.relative_to(PACKAGE).as_posix()
        for name, named in consumers(ast.parse(path.read_text())):
            if not named:
                continue
            if (where, name) in THEIR_OWN:
                used.add((where, name))
            else:
                found.append(f"{where}: {name}({', '.join(named)})")
    assert not found, "a '/' is missing behind the parameters:\n" + "\n".join(found)
    assert used == THEIR_OWN
