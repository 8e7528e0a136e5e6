"""``python -m unsmooth.doctor``: the verb `unsmooth doctor` where even the command's own packages are missing."""

import sys

from unsmooth.doctor.checks import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
