"""x"""
from __future__ import annotations
def cost_record(race): return {}
