"""How time and memory of layers and mechanisms grow with the length of a text, beside what their papers promise."""
