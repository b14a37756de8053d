import gc
from tests import at_size
old = at_size.read
def read(postgres, engine):
    gc.collect()
    return old(postgres, engine)
at_size.read = read
from tests.integration.test_history import *  # noqa
