"""A bundle on disk: its tables (``schema``, ``digest``, ``tables``), how it is sealed (``seal``) and read again (``reader``)."""
