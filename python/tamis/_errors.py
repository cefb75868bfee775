"""The one exception of the package."""


class Error(Exception):
    """A refusal, with the code and the place that docs/semantics.md section 10 defines.

    Attributes:
        code: `"invalid_argument"`, `"index_out_of_range"`, ... ; never `"ok"`.
        message: what is wrong, starting with the argument's name.
        request, row, page, value, limit: where and by how much, each `None` where it does not apply. `row` is the
            candidate row, `page` the logical page, `value` the offending number, `limit` the first value that is
            too large (for `workspace_too_small` the bytes needed).
    """

    def __init__(self, code, message, request=None, row=None, page=None, value=None, limit=None):
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.request = request
        self.row = row
        self.page = page
        self.value = value
        self.limit = limit

    def __reduce__(self):
        return type(self), (self.code, self.message, self.request, self.row, self.page, self.value, self.limit)


def invalid(name, problem, **where):
    """An `invalid_argument` of the argument called `name`."""
    return Error("invalid_argument", f"{name}: {problem}", **where)


def unsupported(name, problem, **where):
    return Error("unsupported", f"{name}: {problem}", **where)
