"""MPI: mpirun and mpiexec start one agent on each host."""
