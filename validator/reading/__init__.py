"""Reading a bundle: files, protocol, plan, routing, tables. Nothing here judges; it reads or says why it cannot."""
