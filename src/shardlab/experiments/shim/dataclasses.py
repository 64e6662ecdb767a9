# mypy: ignore-errors
# MicroPython keeps no annotations, so fields are known by their keywords; types and completeness are CPython's job.


def dataclass(cls=None, **options):
    def finish(cls):
        def __init__(self, **values):
            for name in values:
                setattr(self, name, values[name])

        def __eq__(self, other):
            return type(self) is type(other) and self.__dict__ == other.__dict__

        cls.__init__ = __init__
        cls.__eq__ = __eq__
        return cls

    return finish if cls is None else finish(cls)
