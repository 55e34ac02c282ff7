// SPDX-License-Identifier: Apache-2.0
#include "train/config.h"

namespace sherd::tools {
namespace {

using Config = TrainConfig;

constexpr OptionSpec kOptionSpecs[] = {
    {"model", "NAME", "Model family: gpt, llama, mistral, qwen2 or qwen3",
     "Model", &Config::model},
    {"layers", "N", "Transformer blocks", "Model", &Config::layers, 1},
    {"width", "N", "Width of the residual stream", "Model", &Config::width, 1},
    {"heads", "N", "Attention heads; divide the width", "Model", &Config::heads,
     1},
    {"kv-heads", "N",
     "All but gpt: heads of keys and values; must divide --heads; 0: --heads",
     "Model", &Config::kv_heads, 0},
    {"intermediate", "N",
     "All but gpt: width inside the MLP; 0: 8/3 of the width, rounded up to "
     "256s",
     "Model", &Config::intermediate, 0},
    {"head-width", "N", "All but gpt: width of a head; 0: --width / --heads",
     "Model", &Config::head_width, 0},
    {"sliding-window", "N",
     "All but gpt and llama: positions that each one sees; 0: all", "Model",
     &Config::sliding_window, 0},
    {"rope-theta", "X", "All but gpt: base of the rotary wavelengths", "Model",
     &Config::rope_theta},
    {"rope-scaling", "HOW",
     "All but gpt: how wavelengths are stretched, as in transformers' "
     "rope_scaling:\n"
     "none, linear:FACTOR, llama3:FACTOR,LOW,HIGH,ORIGINAL, or\n"
     "yarn:FACTOR,BETA_FAST,BETA_SLOW,ORIGINAL[,ATTENTION_FACTOR]",
     "Model", &Config::rope_scaling},
    {"norm-epsilon", "X", "All but gpt: epsilon of RMSNorm", "Model",
     &Config::norm_epsilon},
    {"tied-head", "",
     "All but gpt: the embedding is also the head, as it always is in gpt",
     "Model", &Config::tied_head},
    {"seq", "N", "Tokens per sequence", "Model", &Config::seq, 1},
    {"vocab", "N", "Vocabulary; 0: as the data needs", "Model", &Config::vocab,
     0},
    {"dropout", "P", "Share of activations dropped; gpt only", "Model",
     &Config::dropout},
    {"init-from", "PATH",
     "Begin with the weights of this checkpoint, or of the newest of this "
     "run,\n"
     "on any data; takes the options of the model from there",
     "Model", &Config::init_from},
    {"data", "PATH",
     "Folder of `sherd data prepare`, blend.json that names some, or text\n"
     "(bytes are tokens); without it the headers of LibTorch on this machine",
     "Data", &Config::data},
    {"data-bytes", "SIZE",
     "Use only the first bytes; 0: all (8MB of the headers)", "Data",
     &Config::data_bytes, 0},
    {"batch", "N",
     "Sequences per step over all ranks; the number of ranks must divide it",
     "Data", &Config::batch, 1},
    {"micro-batches", "N",
     "Parts in which a rank computes its rows, one after another, before "
     "the\n"
     "step: less memory for activations, the same gradient",
     "Data", &Config::micro_batches, 1},
    {"seed", "N", "For initial values, order of data and sample", "Data",
     &Config::seed, 0},
    {"steps", "N", "Optimizer steps of the schedule", "Training",
     &Config::steps, 1},
    {"stop-at", "N", "End after this step, schedule unchanged; 0: --steps",
     "Training", &Config::stop_at, 0},
    {"optimizer", "NAME",
     "adamw, or muon: Muon for the layers' matrices, AdamW for the rest; on\n"
     "the CPU its ranks that shard are on one host (--replicate: each "
     "replica's)",
     "Training", &Config::optimizer},
    {"lr", "X", "Peak learning rate", "Training", &Config::lr, 0},
    {"lr-scaling", "HOW", "When replicas are missing: none, linear or sqrt",
     "Training", &Config::lr_scaling},
    {"warmup", "N", "Steps in which the rate rises to --lr", "Training",
     &Config::warmup, 0},
    {"lr-decay", "NAME",
     "How the rate falls after the warm-up: cosine, linear or constant",
     "Training", &Config::lr_decay},
    {"lr-min-ratio", "X", "Share of --lr to which the rate falls", "Training",
     &Config::lr_min_ratio},
    {"beta1", "X", "Decay of AdamW's mean of gradients", "Training",
     &Config::beta1},
    {"beta2", "X", "Decay of AdamW's mean of their squares", "Training",
     &Config::beta2},
    {"weight-decay", "X", "On matrices; biases and norms have none", "Training",
     &Config::weight_decay, 0},
    {"clip", "X",
     "Largest 2-norm of the gradient, which is scaled down to it; 0: any",
     "Training", &Config::clip, 0},
    {"ema", "X",
     "Keep an exponential moving average of the weights with this decay, "
     "e.g.\n"
     "0.999, in section ema of checkpoints; 0: none",
     "Training", &Config::ema},
    {"recompute-activations", "",
     "Compute each layer a second time in backward instead of keeping its\n"
     "activations: less memory, the same losses",
     "Training", &Config::recompute_activations},
    {"dtype", "NAME",
     "Type of forward, backward and messages: fp32, bf16 or fp16 (with a\n"
     "scaled loss); weights in training and optimizer state are fp32",
     "Sharding", &Config::dtype},
    {"strategy", "NAME",
     "full_shard: parameters whole only in use; shard_grad_op: whole from\n"
     "forward to backward; no_shard, ddp: always (ddp: by replicate)",
     "Sharding", &Config::strategy},
    {"budget", "SIZE",
     "Limit for gathered (whole) parameters on each rank, e.g. 512MiB;\n"
     "0: what --strategy implies",
     "Sharding", &Config::budget, 0},
    {"memory", "SIZE",
     "Limit for the resident memory of each process, with --device cuda for "
     "what\n"
     "LibTorch takes of its GPU, e.g. 6GiB: five steps are\n"
     "measured, then as many activations and whole parameters are kept as "
     "it\n"
     "allows; 0: no limit",
     "Sharding", &Config::memory, 0},
    {"device", "NAME",
     "cpu, or cuda: each rank trains on the GPU with its local rank",
     "Sharding", &Config::device},
    {"exchange", "NAME",
     "shm: memory of one host; collective: Gloo; hierarchical: shm inside "
     "of\n"
     "hosts, Gloo between them; auto: what suits the hosts",
     "Sharding", &Config::exchange},
    {"prefetch", "N",
     "How many visits before its use a unit may be gathered; 0: when it is\n"
     "used",
     "Sharding", &Config::prefetch, 0},
    {"secondary-ranks", "N",
     "Gather again inside groups of so many neighbouring ranks, such as the\n"
     "ranks of a host, what was gathered over all of them; 0: over all",
     "Sharding", &Config::secondary_ranks, 0},
    {"replicate", "N",
     "Replicas of as many ranks each, which hold the whole model and sum\n"
     "gradients with the others; 1: all ranks hold it together",
     "Sharding", &Config::replicate, 1},
    {"hook", "NAME",
     "How gradients are combined between replicas, or between shards where\n"
     "there are no replicas: mean, bf16, fp16 (half the bytes), power_sgd\n"
     "(few; replicas only); none: mean by the exchange",
     "Sharding", &Config::hook},
    {"hook-rank", "N", "power_sgd: how many columns of each matrix are sent",
     "Sharding", &Config::hook_rank, 1},
    {"run", "DIR", "Folder for what the run writes; new: runs/<time>", "Output",
     &Config::run},
    {"save-every", "N",
     "Steps between checkpoints in DIR/checkpoints, also made at the end,\n"
     "at SIGUSR1, and at SIGTERM, SIGHUP and Ctrl-C before the run ends; a run "
     "with\n"
     "the same DIR goes on from the newest, on any number of ranks. 0: none",
     "Output", &Config::save_every, 0},
    {"keep", "N", "Newest checkpoints that are kept; 0: all", "Output",
     &Config::keep, 0},
    {"eval-every", "N", "Steps between validations; 0: at the end only",
     "Output", &Config::eval_every, 0},
    {"eval-batches", "N", "Global batches per validation", "Output",
     &Config::eval_batches, 1},
    {"sample-tokens", "N", "Length of the sample at the end; 0: none", "Output",
     &Config::sample_tokens, 0},
    {"peak-flops", "X",
     "Peak FLOP/s of a rank, from which MFU is computed; 0: measured at the\n"
     "start",
     "Output", &Config::peak_flops, 0},
    {"profile", "DIR",
     "Write what each rank's exchange does in some steps, the third and "
     "those\n"
     "after it, to DIR/rank-N.json; `sherd trace merge DIR -o FILE` makes a\n"
     "trace of all ranks",
     "Output", &Config::profile},
    {"profile-steps", "N", "How many steps that are", "Output",
     &Config::profile_steps, 1},
    {"quiet", "", "Only errors", "Output", &Config::quiet},
    {"deadline", "SECONDS",
     "How long a rank waits for another one that makes no progress", "Ranks",
     &Config::deadline_s, 1},
    {"rendezvous-deadline", "SECONDS",
     "How long the ranks may take to meet at the start", "Ranks",
     &Config::rendezvous_deadline_s, 1},
    {"network-interface", "NAME",
     "For connections between hosts, such as eth0; without it the one that\n"
     "leads to rank 0",
     "Ranks", &Config::network_interface},
};

}  // namespace

std::span<const OptionSpec> option_specs() { return kOptionSpecs; }

}  // namespace sherd::tools
