"""One attention layer, from the vectors that come to those that leave."""

from __future__ import annotations

from regard.walkthrough.heads import compare, join_heads
from regard.walkthrough.layer import Scene, give_layer
from regard.walkthrough.one_head import follow_word, look_around, project, take_all
from regard.walkthrough.walker import Walker


def walk_layer(walker: Walker, scene: Scene) -> None:
    """Every step of the layer, and the checks that they lead where the layer itself does.

    Raises:
        UnsupportedError: a layer that does what no step shows.
        RegardError: a step that differs from another way to compute it.
    """
    give_layer(walker, scene)
    q, k = project(walker, scene)
    look_around(walker, scene)
    follow_word(walker, scene, q, k)
    take_all(walker, scene, q, k)
    join_heads(walker, scene)
    compare(walker, scene)
