"""Which mutants of a module are tried: cosmic-ray's, less those that cannot matter and those that say the same twice.

One or two replacements of an operator stand for all of them, the same ones everywhere:

- arithmetic and bits: one other operator of the same kind (``+`` and ``-``, ``*`` and ``/``, ``|`` and ``&``, ...);
- ``==`` and ``!=``, ``is`` and ``is not``: each other; ``<`` and its like: the moved boundary and the negation;
- ``and`` and ``or``, ``True`` and ``False``, ``break`` and ``continue``: each other; a number: plus 1 (not minus 1);
- a sign or a ``not`` is dropped; a condition is negated, unless it is one comparison or one ``not`` (said above);
- a loop over nothing, an exception that is not caught, a decorator that is dropped: all of cosmic-ray's.

Left out because nothing a validator does depends on it: annotations; the options of a dataclass (``frozen``, ``slots``);
``strict=`` of ``zip`` (an assertion that lengths agree). cosmic-ray has no mutants of strings, so none of docstrings.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import parso
from cosmic_ray.ast import ast_nodes
from cosmic_ray.mutating import MutationVisitor
from cosmic_ray.plugins import get_operator

BINARY = {
    "Add": "Sub", "Sub": "Add", "Mul": "Div", "Div": "Mul", "FloorDiv": "Mul", "Mod": "Mul", "Pow": "Mul",
    "RShift": "LShift", "LShift": "RShift", "BitOr": "BitAnd", "BitAnd": "BitOr", "BitXor": "BitAnd",
}  # fmt: skip
COMPARISON = {
    "Eq": ["NotEq"], "NotEq": ["Eq"], "Is": ["IsNot"], "IsNot": ["Is"],
    "Lt": ["LtE", "GtE"], "LtE": ["Lt", "Gt"], "Gt": ["GtE", "LtE"], "GtE": ["Gt", "Lt"],
}  # fmt: skip
OPERATORS = (
    *(f"ReplaceBinaryOperator_{old}_{new}" for old, new in BINARY.items()),
    *(f"ReplaceComparisonOperator_{old}_{new}" for old, several in COMPARISON.items() for new in several),
    *("ReplaceUnaryOperator_USub_UAdd", "ReplaceUnaryOperator_Delete_Invert", "ReplaceUnaryOperator_Delete_Not"),
    *("ReplaceAndWithOr", "ReplaceOrWithAnd", "ReplaceTrueWithFalse", "ReplaceFalseWithTrue"),
    *("ReplaceBreakWithContinue", "ReplaceContinueWithBreak", "NumberReplacer", "AddNot"),
    *("ZeroIterationForLoop", "ExceptionReplacer", "RemoveDecorator"),
)
ARITHMETIC = {"arith_expr", "term", "expr", "xor_expr", "and_expr", "shift_expr", "power"}
COMPOUND = {"if_stmt", "while_stmt", "for_stmt", "try_stmt", "with_stmt", "funcdef", "classdef", "match_stmt"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One change of one module; ``lines`` are those of the statement (or of its header) that holds it."""

    operator: str
    occurrence: int
    line: int
    lines: frozenset[int]

    def apply(self, source: str) -> str:
        """Give the mutated source."""
        visitor = MutationVisitor(self.occurrence, get_operator(f"core/{self.operator}")())
        changed = visitor.walk(parso.parse(source))
        assert visitor.mutation_applied, f"expected a place for {self}"
        return str(changed.get_code())


def mutants(source: str) -> Iterator[Mutant]:
    """Give the mutants of a module, operator by operator in the order of the source."""
    tree = parso.parse(source)
    nodes = list(ast_nodes(tree))
    for name in OPERATORS:
        operator = get_operator(f"core/{name}")()
        positions = ((node, place) for node in nodes for place in operator.mutation_positions(node))
        for occurrence, (node, (start, _)) in enumerate(positions):
            leaf = tree.get_leaf_for_position((start[0], start[1] + 1), include_prefixes=True)
            if _matters(name, occurrence, node, leaf):
                yield Mutant(operator=name, occurrence=occurrence, line=start[0], lines=_statement(leaf))


def changed_line(source: str, mutant: Mutant) -> tuple[str, str]:
    """Give the first line that differs, before and after."""
    pairs = zip(source.split("\n"), mutant.apply(source).split("\n"), strict=False)
    return next((old.strip(), new.strip()) for old, new in pairs if old != new)


def _matters(name: str, occurrence: int, node: Any, leaf: Any) -> bool:
    if name == "NumberReplacer" and occurrence % 2:  # its second offset, -1
        return False
    if name.startswith("ReplaceBinary") and node.parent.type not in ARITHMETIC:  # the star of a signature
        return False
    if name == "ExceptionReplacer" and leaf.parent.type == "atom_expr":  # cosmic-ray fails on binascii.Error
        return False
    if name == "AddNot":
        condition = node.children[2 if node.type == "test" else 1]
        if condition.type == "not_test":
            return False
        if condition.type == "comparison" and "in" not in condition.children[1].get_code().split():
            return False
    child = leaf
    while child.parent is not None:
        parent, index = child.parent, child.parent.children.index(child)
        if parent.type in ("tfpdef", "annassign") and index in (1, 2) and parent.children[index - 1] == ":":
            return False
        if parent.type == "funcdef" and parent.children[index - 1] == "->":
            return False
        if parent.type == "decorator" and "dataclass" in parent.get_code() and name != "RemoveDecorator":
            return False
        if parent.type == "argument" and parent.children[0].get_code().strip() == "strict":
            return False
        child = parent
    return True


def _statement(leaf: Any) -> frozenset[int]:
    """Lines of the simple statement around a leaf, or of the header (``if ...:``) of the compound one."""
    child = leaf
    while (parent := child.parent) is not None:
        if parent.type in ("simple_stmt", "decorator"):
            return frozenset(range(parent.start_pos[0], parent.end_pos[0]))
        if parent.type in COMPOUND and child.type != "suite":
            children = parent.children
            begin = max(i for i in range(children.index(child) + 1) if children[i].type == "keyword")
            end = next(i for i in range(begin, len(children)) if children[i] == ":")
            return frozenset(range(children[begin].start_pos[0], children[end].end_pos[0] + 1))
        child = parent
    return frozenset({leaf.start_pos[0]})
