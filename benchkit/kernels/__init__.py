"""What is measured: the arm port (``contract``), the one table of kernels (``registry``) and the kernels themselves."""
