"""The figures: Perdure beside the bare driver, measured in one run. `python -m bench`; see docs/performance.md."""
