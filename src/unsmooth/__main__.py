"""``python -m unsmooth`` is the `unsmooth` command, for torchrun above all."""

from unsmooth.cli import main

if __name__ == "__main__":
    main()
