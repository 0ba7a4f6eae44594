"""The three refreshes that the plugin takes over, and their names in this package and in SGLang."""

from __future__ import annotations

__all__ = ["DRAFT", "EXTEND", "FORWARD_MODES", "PHASES", "PLAN_MODES", "VERIFY"]

DRAFT = "draft"
"""The draft steps: one row a request, one backend a step."""

VERIFY = "verify"
"""Target verify: several rows a request, one backend."""

EXTEND = "extend"
"""Draft extend: the accepted rows of each request, one backend."""

PHASES = (DRAFT, VERIFY, EXTEND)

PLAN_MODES = {DRAFT: "decode", VERIFY: "target_verify", EXTEND: "draft_extend"}
"""The mode of `ReplayPlanner.plan` for each phase."""

FORWARD_MODES = {DRAFT: "DECODE", VERIFY: "TARGET_VERIFY", EXTEND: "DRAFT_EXTEND_V2"}
"""The member of SGLang's ``ForwardMode`` for each phase."""
