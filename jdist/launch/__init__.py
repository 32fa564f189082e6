"""Floor 3: how agents get onto nodes. Command lines only: a launcher gets ``jdist join`` started once per node."""
