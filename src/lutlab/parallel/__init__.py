"""One model or one product on several GPUs (tensor parallelism). Only evaluators import it."""
