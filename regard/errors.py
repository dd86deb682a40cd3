"""What regard raises: one family. Each message names what was given, the rule, and the way out."""


class RegardError(Exception):
    """Everything regard refuses; catch this to catch it all."""


class ShapeError(RegardError, ValueError):
    """Tensors whose axes, dtypes or devices do not fit together."""


class ArgumentError(RegardError, ValueError):
    """An argument outside the values it may take."""


class KeywordError(RegardError, TypeError):
    """A keyword that a function does not have, such as one of another library; names what to write."""


class UnsupportedError(RegardError, NotImplementedError):
    """A combination that nothing here computes, or that the named backend does not."""


class DataError(RegardError, ValueError):
    """A text file that cannot be read as what it should be; names the file and the line."""


class CheckpointError(RegardError, ValueError):
    """A saved run or model that is missing, damaged, or not of this kind."""


class NotFoundError(DataError, CheckpointError):
    """A file, column, folder, training run or model that was named and is not there, or is one of another kind."""


class OccupiedError(CheckpointError):
    """A folder to write into that already holds something else, or a training run with other settings."""


class MissingPackageError(RegardError, ImportError):
    """An optional package that a call needs and this environment lacks."""


class WastedPairsWarning(UserWarning):
    """A call computes more than twice the pairs that its pattern keeps, since a function does not show which it keeps.

    Silence it with `warnings.simplefilter("ignore", regard.errors.WastedPairsWarning)`.
    """


class EmptyRowsWarning(UserWarning):
    """A call has queries that stand before the first key and may look at none, so that their outputs are zeros.

    Silence it with `q_start=`, which says where the queries stand, or with
    `warnings.simplefilter("ignore", regard.errors.EmptyRowsWarning)`.
    """


class AmbiguousBiasWarning(UserWarning):
    """A bias has three axes, of which the first could be the batch as well as the heads; it is read as the heads.

    Silence it with `bias[None]`, which says that these are heads, or with
    `warnings.simplefilter("ignore", regard.errors.AmbiguousBiasWarning)`.
    """
