Any = Callable = Iterable = Sequence = Mapping = NamedTuple = None
TYPE_CHECKING = False
