"""Where calls run and how they are timed: the port (``ports``) and its three implementations (``host``, ``cuda``, ``fake``)."""
