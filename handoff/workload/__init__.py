"""Where requests come from: scenarios, trace files, synthetic streams."""
