"""What stands between a call and a backend: the call, the problem it poses, the plan that answers it, and the result.

tensors    what may be given as q, k and v, and the checks of their axes
result     the statistics one may ask for, and the result that holds them
problem    a call as a value, without any number of its tensors
call       the tensors and options of one call, from which everything else is made
backend    what a backend is: problem in, offer or refusal out; operands in, result out
hidden     hidden keys zeroed before a backend runs, and values that are not finite contained after it
plan       the backend chosen, its cost, why not the others, and the one way to run it
"""
