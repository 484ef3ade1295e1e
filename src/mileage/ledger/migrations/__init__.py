"""Migrations of the ledger's schema, applied in order and never changed after a release."""

from __future__ import annotations
