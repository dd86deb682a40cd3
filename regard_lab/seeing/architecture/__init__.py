"""One drawing of a Transformer, made from its configuration: as SVG, whose boxes name lessons and classes, and as text.

It shows the stacks, where queries, keys and values come from, and whether a norm stands before a part or after it.
"""

from regard_lab.seeing.architecture.configs import architecture_of
from regard_lab.seeing.architecture.drawing import BoxLinks, draw_svg, public_links
from regard_lab.seeing.architecture.hugging_face import architecture_of_hugging_face
from regard_lab.seeing.architecture.parts import DrawnModel, to_record, to_text

__all__ = [
    "DrawnModel",
    "architecture_of",
    "architecture_of_hugging_face",
    "draw_svg",
    "to_record",
    "to_text",
    "BoxLinks",
    "public_links",
]
