"""Options of the compiler that some versions do not have."""

from ambs.nn.compiling import QUICK, known_options, quick_options


def test_options_that_are_gone_are_left_out():
    wanted = {"xla_backend_optimization_level": 0, "xla_option_of_the_day_before": True}
    assert known_options(tuple(wanted.items())) == {"xla_backend_optimization_level": 0}
    assert {"xla_backend_optimization_level": 0}.items() <= quick_options().items() <= QUICK.items()
