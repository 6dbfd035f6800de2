"""The exceptions, without a daemon."""

import copy
import pickle
import unittest

from fixture import main
from torpor import errors


class ErrorsTest(unittest.TestCase):
    def test_each_code_has_a_class(self):
        for code, kind, builtin in (
            (1, errors.Cancelled, Exception),
            (3, errors.InvalidArgument, ValueError),
            (4, errors.DeadlineExceeded, TimeoutError),
            (5, errors.NotFound, LookupError),
            (7, errors.PermissionDenied, Exception),
            (8, errors.ResourceExhausted, MemoryError),
            (9, errors.FailedPrecondition, RuntimeError),
            (10, errors.Aborted, Exception),
            (12, errors.Unimplemented, Exception),
            (13, errors.Internal, Exception),
            (14, errors.Unavailable, ConnectionError),
            (15, errors.DataLoss, Exception),
        ):
            error = errors.make(code, "REASON", "message", {"size": 5})
            with self.subTest(code=code):
                self.assertIs(type(error), kind)
                self.assertIsInstance(error, builtin)
                self.assertIsInstance(error, errors.TorporError)
                self.assertEqual(error.code, code)
                self.assertEqual(error.details, {"size": "5"})

    def test_codes_without_a_class(self):
        error = errors.make(16, "REASON", "message")
        self.assertIs(type(error), errors.TorporError)
        self.assertEqual((error.code, str(error)), (16, "CODE_16 REASON: message"))

    def test_numbers(self):
        error = errors.NotFound("REASON", "message", {"size": 1 << 40, "name": "x"})
        self.assertEqual(error.number("size"), 1 << 40)
        self.assertIsNone(error.number("name"))
        self.assertIsNone(error.number("none"))

    def test_text(self):
        error = errors.Unavailable("DAEMON_GONE", "it has ended", {"b": 2, "a": 1})
        self.assertEqual(str(error), "UNAVAILABLE DAEMON_GONE: it has ended {a: 1, b: 2}")
        self.assertEqual(eval(repr(error), vars(errors)).details, error.details)

    def test_they_travel_between_processes(self):
        for error in (
            errors.DeadlineExceeded("ASLEEP", "still", {"asleep_tags": "weights"}),
            errors.make(16, "REASON", "message"),
        ):
            for other in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
                self.assertIs(type(other), type(error))
                self.assertEqual(str(other), str(error))
                self.assertEqual(other.code, error.code)
                self.assertEqual(other.details, error.details)


if __name__ == "__main__":
    main()
