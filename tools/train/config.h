// SPDX-License-Identifier: Apache-2.0
//
// Everything that can be configured in `sherd train`, from flags and from a JSON file with the same
// names. One table drives the flags, the file, the help and the config.json of a run, so they
// cannot differ. Values and pure functions; no file is opened here. Thread rule: any thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>

namespace sherd::tools {

// A size that people write as 512MiB.
struct ByteSize {
  std::int64_t count = 0;
  bool operator==(const ByteSize&) const = default;
};

struct TrainConfig {
  std::string model = "gpt";  // Other models have the options of Llama.
  std::int64_t layers = 8;
  std::int64_t width = 256;
  std::int64_t heads = 8;
  std::int64_t kv_heads = 0;          // 0 means `heads`. Llama only.
  std::int64_t intermediate = 0;      // 0 means Llama's rule. Llama only.
  std::int64_t head_width = 0;        // 0 means width / heads. Llama only.
  std::int64_t sliding_window = 0;    // 0 means none. Not of gpt and llama.
  double rope_theta = 10000.0;        // Llama only.
  std::string rope_scaling = "none";  // See parse_rope_scaling().
  double norm_epsilon = 1e-6;         // Llama only.
  // Llama only; the head of gpt is always tied.
  bool tied_head = false;
  std::int64_t seq = 128;
  std::int64_t vocab = 0;  // 0 means that of the data.
  double dropout = 0.0;

  // A run or checkpoint; if empty, values are drawn by seed.
  std::string init_from;

  std::string data;     // If empty, LibTorch's headers.
  ByteSize data_bytes;  // 0 means all, or 8 MB of the headers.
  std::int64_t batch = 12;
  std::int64_t micro_batches = 1;
  std::int64_t seed = 0;

  std::int64_t steps = 200;
  std::int64_t stop_at = 0;  // 0 means `steps`.
  std::string optimizer = "adamw";
  double lr = 2e-3;
  std::string lr_scaling = "none";  // Applies while replicas are missing.
  std::int64_t warmup = 20;
  std::string lr_decay = "cosine";
  double lr_min_ratio = 0.1;  // A ratio to lr, at the last step.
  // As in GPT-2's descendants: a shorter memory of squares than Adam's.
  double beta1 = 0.9;
  double beta2 = 0.95;
  double weight_decay = 0.1;
  double clip = 1.0;  // 0 means never.
  double ema = 0.0;   // The decay of the average of the weights; 0 means none.

  bool recompute_activations = false;
  std::string dtype = "fp32";
  std::string device = "cpu";
  std::string strategy = "full_shard";
  ByteSize budget;  // 0: as the strategy says.
  ByteSize memory;  // Per process; 0 means no limit.
  std::string exchange = "auto";
  std::int64_t prefetch = 1;         // In visits.
  std::int64_t secondary_ranks = 0;  // 0 means none.
  std::int64_t replicate = 1;
  std::string hook = "none";
  std::int64_t hook_rank = 4;  // For power_sgd only.

  std::string run;                 // If empty, runs/<time>.
  std::int64_t save_every = 1000;  // Also saves at the end; 0 means never.
  std::int64_t keep = 2;           // How many checkpoints; 0 means all.
  std::int64_t eval_every = 50;    // 0 means only at the end.
  std::int64_t eval_batches = 4;
  std::int64_t sample_tokens = 200;
  double peak_flops = 0;  // For one rank; 0 means measured.
  std::string profile;    // A folder; if empty, no profile is taken.
  std::int64_t profile_steps = 3;
  bool quiet = false;

  // As in WorldOptions.
  std::int64_t deadline_s = 600;
  std::int64_t rendezvous_deadline_s = 300;
  std::string network_interface;

  bool operator==(const TrainConfig&) const = default;
};

struct OptionSpec {
  const char* name;   // The flag is "--name", and the file's key the same name.
  const char* value;  // Stands for the value in the help; "" for a flag.
  const char* help;
  // The heading in the help. replica_invariant_config() leaves out "Output" and "Ranks", and
  // rank_invariant_config() "Ranks".
  const char* group;
  std::variant<
      std::int64_t TrainConfig::*,
      double TrainConfig::*,
      bool TrainConfig::*,
      std::string TrainConfig::*,
      ByteSize TrainConfig::*>
      member;
  std::optional<double> least{};  // For numbers and sizes.
};

// In the order of the help.
std::span<const OptionSpec> option_specs();

// Whether the value is the path of a file or folder.
bool names_path(const OptionSpec& row);

// The value of an option as a user would write it; "" if it is empty.
std::string text_of(const OptionSpec& row, const TrainConfig& config);

// The parts of "llama3:8,1,4,8192" or "yarn:4,32,1,32768", in this order.
struct RopeScalingText {
  std::string kind;  // none, linear, llama3 or yarn.
  double factor = 1.0;
  double low_freq_factor = 1.0;  // These two are for llama3,
  double high_freq_factor = 4.0;
  double beta_fast = 32.0;  // and these for yarn.
  double beta_slow = 1.0;
  std::int64_t original_positions = 8192;
  double attention_factor = 0.0;  // For yarn; 0 derives it from the factor.
};
// Throws Error, naming the text, unless it is "none", "linear:FACTOR",
// "llama3:FACTOR,LOW,HIGH,ORIGINAL" or "yarn:FACTOR,FAST,SLOW,ORIGINAL" with or
// without ",ATTENTION", with a factor of at least 1.
RopeScalingText parse_rope_scaling(const std::string& text);

// "512MiB", "1.5GB", "4096": KiB, MiB, GiB are powers of 1024, KB, MB, GB (in
// either case) of 1000. Throws Error, naming the text, unless the whole is a
// size that fits 63 bits.
ByteSize parse_bytes(std::string_view text);

// The value in the largest binary unit that keeps it whole: "512MiB".
std::string format_bytes(ByteSize bytes);

// Flags take precedence over the file, and the file over the defaults. `flags` maps names without
// dashes to what the user wrote; `file_text` is JSON, empty if there is no file. Relative paths in
// the file begin at the folder of `file_path`. The key `about` of the file is ignored: a run's
// config.json has further facts there. Throws Error that names flag or key, expected and found: an
// unknown name, a wrong type, a value out of range, or two values that contradict each other.
TrainConfig make_config(
    const std::map<std::string, std::string>& flags,
    const std::string& file_path,
    const std::string& file_text);

// The two halves of make_config(): reading, with other defaults, and checking values against each
// other.
TrainConfig read_config(
    const std::map<std::string, std::string>& flags,
    const std::string& file_path,
    const std::string& file_text,
    const TrainConfig& defaults = {});
void check_config(const TrainConfig& config);
// The same for a sliding window, which Hugging Face's Llama has none of: a Llama with one is a
// Mistral. Checkpoints may have been trained before this was checked.
void expect_no_window_of_llama(const TrainConfig& config);

// The number of heads times the size of a head.
std::int64_t attention_width(const TrainConfig& config);

// Whether each rank has the whole model, regardless of --replicate.
bool whole_on_each_rank(const TrainConfig& config);

// The part of the configuration that defines a run, without what may differ between replicas, or
// between starts, of one run.
TrainConfig replica_invariant_config(TrainConfig config);

// The part that all ranks must have been told alike. The data are compared by their hash, and of
// some options it matters only whether they were given.
TrainConfig rank_invariant_config(TrainConfig config);

// JSON that make_config() reads back to the same value. `about` contains facts of this run, printed
// as strings.
std::string to_json(
    const TrainConfig& config, const std::map<std::string, std::string>& about);

// A path that is relative to the folder, or absolute, in one spelling; "" for "".
std::string path_seen_from(const std::string& folder, const std::string& path);

}  // namespace sherd::tools
