"""From a call to its result: the call, its problem, the plan, and the interface of backends.

tensors       the types that q, k and v may have, and the checks of their axes
result        the statistics that a call can return, and the result that contains them
problem       sizes and options of a call, without the values of its tensors, and what its mechanism takes
call          the tensors and options of one call
dropped       calls with the keys of a cache that dropped some
costs         the measured figures by which backends are compared
backend       the interface of backends: from problem to offer or refusal, from operands to result
hidden        hidden keys are zeroed before a backend runs; values that are not finite are contained after it
shaped        results of tensors without values (the meta device): shapes and dtypes
plan          the chosen backend, its cost, the cost or refusal of every other, and how it is run
"""
