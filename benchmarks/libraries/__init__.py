"""Cases beside other libraries that only reports need; `regard bench` has those that tell how fast a machine is."""
