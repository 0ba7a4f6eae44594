"""What `help` says of the classes that the core gives to users."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest

import qsa_group
from qsa_group import ReplayPlan, RequestTable

STUB = ast.parse(Path(qsa_group.__file__).with_name("_core.pyi").read_text())


def documented(class_name: str) -> dict[str, str]:
    """The docstring of each public member of a class, as the stub has it."""
    (of_class,) = (node for node in STUB.body if isinstance(node, ast.ClassDef) and node.name == class_name)
    members = (node for node in of_class.body if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"))
    return {member.name: ast.get_docstring(member) or "" for member in members}


@pytest.mark.parametrize(("public", "stub"), [(ReplayPlan, "Plan"), (RequestTable, "Table")])
def test_help_says_what_the_stub_says(public: type, stub: str) -> None:
    members = documented(stub)
    assert members
    for name, text in members.items():
        assert text, f"{stub}.{name} has no docstring"
        assert inspect.getdoc(getattr(public, name)) == text, f"{stub}.{name}"
