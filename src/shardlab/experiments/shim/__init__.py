"""What MicroPython lacks and the models use: three small modules, put beside ``shardlab`` in the browser's bundle."""
