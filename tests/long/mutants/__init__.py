"""Small changes of the code, each of which some test must notice."""
