// SPDX-License-Identifier: Apache-2.0
#include "train/config.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <limits>
#include <sstream>
#include <type_traits>
#include <utility>
#include <nlohmann/json.hpp>
#include <sherd/base/error.h>
#include "nearest_name.h"

namespace sherd::tools {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kAbout = "about";
// The help of an option that gpt does not have begins so.
constexpr std::string_view kLlamaOnly = "Llama:";

[[noreturn]] void refuse(
    const std::string& where,
    const std::string& expected,
    const std::string& found) {
  throw Error(where + ": expected " + expected + ", found " + found);
}

std::string in_quotes(std::string_view text) {
  std::string result = "'";
  return result.append(text).append("'");
}

// The whole of `text` as a number, in the C locale.
template <typename T>
bool parse_whole(std::string_view text, T& value) {
  const auto* end = text.data() + text.size();
  const auto [stop, failure] = std::from_chars(text.data(), end, value);
  return failure == std::errc() && stop == end;
}

const char* expected_for(const OptionSpec& row) {
  return std::visit(
      [](auto member) {
        using T = std::remove_reference_t<
            decltype(std::declval<TrainConfig>().*member)>;
        if constexpr (std::is_same_v<T, bool>) {
          return "true or false";
        } else if constexpr (std::is_same_v<T, std::int64_t>) {
          return "a whole number";
        } else if constexpr (std::is_same_v<T, double>) {
          return "a number";
        } else if constexpr (std::is_same_v<T, ByteSize>) {
          return "a size such as 512MiB";
        } else {
          return "a text";
        }
      },
      row.member);
}

bool read(std::string_view text, std::int64_t& value) {
  return parse_whole(text, value);
}
bool read(std::string_view text, double& value) {
  return parse_whole(text, value) && std::isfinite(value);
}
bool read(std::string_view text, bool& value) {
  value = text == "true";
  return value || text == "false";
}
bool read(std::string_view text, std::string& value) {
  value = text;
  return true;
}
bool read(std::string_view text, ByteSize& value) {
  value = parse_bytes(text);
  return true;
}

bool read(const Json& json, std::int64_t& value) {
  if (!json.is_number_integer() ||
      (json.is_number_unsigned() &&
       json.get<std::uint64_t>() >
           static_cast<std::uint64_t>(
               std::numeric_limits<std::int64_t>::max()))) {
    return false;
  }
  value = json.get<std::int64_t>();
  return true;
}
bool read(const Json& json, double& value) {
  if (!json.is_number()) {
    return false;
  }
  value = json.get<double>();
  return std::isfinite(value);
}
bool read(const Json& json, bool& value) {
  if (!json.is_boolean()) {
    return false;
  }
  value = json.get<bool>();
  return true;
}
bool read(const Json& json, std::string& value) {
  if (!json.is_string()) {
    return false;
  }
  value = json.get<std::string>();
  return true;
}
bool read(const Json& json, ByteSize& value) {
  if (json.is_string()) {
    value = parse_bytes(json.get<std::string>());
    return true;
  }
  return read(json, value.count);
}

template <typename Source>
bool set(TrainConfig& config, const OptionSpec& row, const Source& source) {
  return std::visit(
      [&](auto member) { return read(source, config.*member); }, row.member);
}

const OptionSpec* find_row(std::string_view name) {
  for (const auto& row : option_specs()) {
    if (name == row.name) {
      return &row;
    }
  }
  return nullptr;
}

void take_flag(
    TrainConfig& config, const std::string& name, const std::string& text) {
  const auto* row = find_row(name);
  if (row == nullptr) {
    refuse("--" + name, "a known option", "none of that name");
  }
  try {
    if (set(config, *row, std::string_view(text))) {
      return;
    }
  } catch (const Error&) {
    // A size that is none; said below like every other type.
  }
  refuse("--" + name, expected_for(*row), in_quotes(text));
}

std::vector<std::string> option_names() {
  std::vector<std::string> names;
  for (const auto& row : option_specs()) {
    names.emplace_back(row.name);
  }
  return names;
}

// A relative path in a file begins at the file's folder.
std::string seen_from_folder_of(
    const std::string& file, const std::string& path) {
  if (path.empty()) {
    return path;
  }
  const auto folder = std::filesystem::path(file).parent_path();
  auto text = (folder / path).lexically_normal().string();
  if (text.size() > 1 && text.back() == '/') {
    text.pop_back();  // As "runs/x/." leaves it.
  }
  return text;
}

void take_key(
    TrainConfig& config,
    const std::string& path,
    const std::string& key,
    const Json& value) {
  const auto where = path + ": key " + in_quotes(key);
  const auto* row = find_row(key);
  if (row == nullptr) {
    refuse(
        where, "the name of an option (sherd train --help)",
        "none such" + suggestion(key, option_names()));
  }
  try {
    if (set(config, *row, value)) {
      if (names_path(*row)) {
        auto& target =
            config.*std::get<std::string TrainConfig::*>(row->member);
        target = seen_from_folder_of(path, target);
      }
      return;
    }
  } catch (const Error&) {
    // As in take_flag().
  }
  refuse(where, expected_for(*row), value.dump());
}

void take_file(
    TrainConfig& config, const std::string& path, const std::string& text) {
  Json file;
  try {
    file = Json::parse(text);
  } catch (const Json::parse_error& error) {
    refuse(
        path, "a JSON object",
        "text that ends being JSON at byte " + std::to_string(error.byte));
  }
  if (!file.is_object()) {
    refuse(path, "a JSON object", std::string("a JSON ") + file.type_name());
  }
  for (const auto& [key, value] : file.items()) {
    if (key != kAbout) {
      take_key(config, path, key, value);
    }
  }
}

template <typename T>
void at_least(const char* name, T least, T found) {
  if (!(found >= least)) {
    std::ostringstream expected;
    std::ostringstream value;
    expected << "at least " << least;
    value << found;
    refuse("--" + std::string(name), expected.str(), value.str());
  }
}

void one_of(
    const char* name,
    const std::vector<std::string>& allowed,
    const std::string& found) {
  if (std::find(allowed.begin(), allowed.end(), found) != allowed.end()) {
    return;
  }
  std::string expected = allowed.size() > 1 ? "one of " : "";
  for (std::size_t i = 0; i < allowed.size(); ++i) {
    expected += (i > 0 ? ", " : "") + allowed[i];
  }
  refuse("--" + std::string(name), expected, in_quotes(found));
}

void check_sizes(const TrainConfig& config) {
  using std::int64_t;
  at_least<int64_t>("layers", 1, config.layers);
  at_least<int64_t>("width", 1, config.width);
  at_least<int64_t>("heads", 1, config.heads);
  at_least<int64_t>("kv-heads", 0, config.kv_heads);
  at_least<int64_t>("intermediate", 0, config.intermediate);
  at_least<int64_t>("head-width", 0, config.head_width);
  at_least<int64_t>("sliding-window", 0, config.sliding_window);
  at_least<int64_t>("seq", 1, config.seq);
  at_least<int64_t>("vocab", 0, config.vocab);
  at_least<int64_t>("batch", 1, config.batch);
  at_least<int64_t>("steps", 1, config.steps);
  at_least<int64_t>("stop-at", 0, config.stop_at);
  at_least<int64_t>("warmup", 0, config.warmup);
  at_least<int64_t>("seed", 0, config.seed);
  at_least<int64_t>("save-every", 0, config.save_every);
  at_least<int64_t>("keep", 0, config.keep);
  at_least<int64_t>("eval-every", 0, config.eval_every);
  at_least<int64_t>("eval-batches", 1, config.eval_batches);
  at_least<int64_t>("sample-tokens", 0, config.sample_tokens);
  at_least<int64_t>("replicate", 1, config.replicate);
  at_least<int64_t>("hook-rank", 1, config.hook_rank);
  at_least<int64_t>("budget", 0, config.budget.count);
  at_least<int64_t>("data-bytes", 0, config.data_bytes.count);
  at_least("lr", 0.0, config.lr);
  at_least("weight-decay", 0.0, config.weight_decay);
  at_least("clip", 0.0, config.clip);
  at_least("peak-flops", 0.0, config.peak_flops);
}

void multiple_of(
    const char* name,
    std::int64_t found,
    const char* divisor_name,
    std::int64_t divisor) {
  if (found % divisor != 0) {
    refuse(
        "--" + std::string(name),
        "a multiple of --" + std::string(divisor_name) + " " +
            std::to_string(divisor),
        std::to_string(found));
  }
}

void check_gpt(const TrainConfig& config) {
  for (const auto& row : option_specs()) {
    const auto found = text_of(row, config);
    const auto preset = text_of(row, {});
    const bool llamas = std::string_view(row.help).starts_with(kLlamaOnly);
    if (llamas && found != preset) {
      refuse("--" + std::string(row.name), preset + " with --model gpt", found);
    }
  }
}

void check_llama(const TrainConfig& config) {
  if (config.kv_heads > 0) {
    multiple_of("heads", config.heads, "kv-heads", config.kv_heads);
  }
  const auto& model = config.model;
  if (config.head_width % 2 != 0) {
    refuse("--head-width", "an even width", std::to_string(config.head_width));
  }
  if (config.head_width == 0 && config.width / config.heads % 2 != 0) {
    refuse(
        "--width",
        "an even share for each of --heads " + std::to_string(config.heads) +
            " with --model " + model,
        std::to_string(config.width));
  }
  if (config.dropout != 0.0) {
    refuse(
        "--dropout", "0 with --model " + model, std::to_string(config.dropout));
  }
  for (const auto& [name, found] :
       {std::pair{"rope-theta", config.rope_theta},
        std::pair{"norm-epsilon", config.norm_epsilon}}) {
    if (!(found > 0.0)) {
      refuse(
          "--" + std::string(name), "a positive number", std::to_string(found));
    }
  }
  parse_rope_scaling(config.rope_scaling);
}

// What belongs to sharding alone.
void check_ddp(const TrainConfig& config) {
  if (config.hook != "none" && config.exchange == "shm") {
    refuse(
        "--exchange", "auto or collective with a --hook, which sends messages",
        config.exchange);
  }
  if (config.dtype != "fp32") {
    refuse("--dtype", "fp32 with --strategy ddp", config.dtype);
  }
  if (config.budget.count != 0) {
    refuse(
        "--budget", "none with --strategy ddp",
        std::to_string(config.budget.count));
  }
  if (config.replicate != 1) {
    refuse(
        "--replicate", "1 with --strategy ddp, where every rank is a replica",
        std::to_string(config.replicate));
  }
}

void check(const TrainConfig& config) {
  check_sizes(config);
  one_of("model", {"gpt", "llama", "mistral", "qwen2", "qwen3"}, config.model);
  one_of("dtype", {"fp32", "bf16"}, config.dtype);
  one_of("optimizer", {"adamw", "muon"}, config.optimizer);
  one_of("lr-scaling", {"none", "linear", "sqrt"}, config.lr_scaling);
  one_of(
      "strategy", {"full_shard", "shard_grad_op", "no_shard", "ddp"},
      config.strategy);
  one_of("hook", {"none", "mean", "bf16", "fp16", "power_sgd"}, config.hook);
  one_of(
      "exchange", {"auto", "collective", "shm", "hierarchical"},
      config.exchange);
  if (config.strategy == "ddp") {
    check_ddp(config);
  } else if (config.hook != "none") {
    refuse("--hook", "none without --strategy ddp", config.hook);
  }
  if (config.dropout < 0.0 || config.dropout >= 1.0) {
    refuse("--dropout", "a share in [0, 1)", std::to_string(config.dropout));
  }
  if (config.head_width == 0) {
    multiple_of("width", config.width, "heads", config.heads);
  }
  if (config.model == "gpt") {
    check_gpt(config);
  } else {
    check_llama(config);
  }
  if (config.stop_at > config.steps) {
    refuse(
        "--stop-at", "at most --steps " + std::to_string(config.steps),
        std::to_string(config.stop_at));
  }
}

// The rows of the model before the others.
std::vector<OptionSpec> with_model_rows(const std::vector<OptionSpec>& others) {
  using C = TrainConfig;
  std::vector<OptionSpec> rows = {
      {"model", "NAME", "Model family: gpt, llama, mistral, qwen2 or qwen3",
       "Model", &C::model},
      {"layers", "N", "Transformer blocks", "Model", &C::layers},
      {"width", "N", "Width of the residual stream", "Model", &C::width},
      {"heads", "N", "Attention heads; divide the width", "Model", &C::heads},
      {"kv-heads", "N",
       "Llama: heads of keys and values; must divide --heads; 0: as many",
       "Model", &C::kv_heads},
      {"intermediate", "N",
       "Llama: width inside the MLP; 0: 8/3 of the width, rounded up to 256s",
       "Model", &C::intermediate},
      {"head-width", "N", "Llama: width of a head; 0: --width / --heads",
       "Model", &C::head_width},
      {"sliding-window", "N", "Llama: positions that each one sees; 0: all",
       "Model", &C::sliding_window},
      {"rope-theta", "X", "Llama: base of the rotary wavelengths", "Model",
       &C::rope_theta},
      {"rope-scaling", "HOW",
       "Llama: stretches them: none, linear:FACTOR or\n"
       "llama3:FACTOR,LOW,HIGH,ORIGINAL as in transformers' rope_scaling",
       "Model", &C::rope_scaling},
      {"norm-epsilon", "X", "Llama: of RMSNorm", "Model", &C::norm_epsilon},
      {"tied-head", "",
       "Llama: the embedding is also the head, as it always is in gpt", "Model",
       &C::tied_head},
      {"seq", "N", "Tokens per sequence", "Model", &C::seq},
      {"vocab", "N", "Vocabulary; 0: as the data needs", "Model", &C::vocab},
      {"dropout", "P", "Share of activations dropped; gpt only", "Model",
       &C::dropout},
  };
  rows.insert(rows.end(), others.begin(), others.end());
  return rows;
}

struct SizeSuffix {
  const char* name;  // Lower case.
  std::int64_t bytes;
};
constexpr std::array<SizeSuffix, 9> kSizeSuffixes = {{
    {"gib", 1LL << 30},
    {"mib", 1LL << 20},
    {"kib", 1LL << 10},
    {"gb", 1'000'000'000},
    {"mb", 1'000'000},
    {"kb", 1'000},
    {"tib", 1LL << 40},
    {"b", 1},
    {"", 1},
}};

}  // namespace

RopeScalingText parse_rope_scaling(const std::string& text) {
  RopeScalingText found{.kind = text.substr(0, text.find(':'))};
  auto rest = std::string_view(text).substr(found.kind.size());
  bool valid = true;
  const auto take = [&](char before, auto& value) {
    const auto end = std::min(rest.find(',', 1), rest.size());
    valid = valid && !rest.empty() && rest[0] == before &&
        parse_whole(rest.substr(1, end - 1), value);
    rest.remove_prefix(end);
  };
  if (found.kind == "linear" || found.kind == "llama3") {
    take(':', found.factor);
  }
  if (found.kind == "llama3") {
    take(',', found.low_freq_factor);
    take(',', found.high_freq_factor);
    take(',', found.original_positions);
    valid = valid && found.low_freq_factor > 0.0 &&
        found.low_freq_factor < found.high_freq_factor &&
        found.original_positions > 0;
  }
  const bool known =
      found.kind == "linear" || found.kind == "llama3" || found.kind == "none";
  if (!valid || !known || !rest.empty() || !(found.factor >= 1.0)) {
    refuse(
        "--rope-scaling",
        "none, linear:FACTOR or llama3:FACTOR,LOW,HIGH,ORIGINAL with a factor "
        "of at least 1 and LOW below HIGH",
        in_quotes(text));
  }
  return found;
}

const std::vector<OptionSpec>& option_specs() {
  using C = TrainConfig;
  static const std::vector<OptionSpec> kRows = with_model_rows({
      {"data", "PATH",
       "File or folder of text (bytes are tokens), or a .bin of uint16 token\n"
       "ids; without it the headers of LibTorch on this machine",
       "Data", &C::data},
      {"data-bytes", "SIZE",
       "Use only the first bytes; 0: all (8MB of the headers)", "Data",
       &C::data_bytes},
      {"batch", "N",
       "Sequences per step over all ranks; the number of ranks must divide it",
       "Data", &C::batch},
      {"seed", "N", "For initial values, order of data and sample", "Data",
       &C::seed},
      {"steps", "N", "Optimizer steps of the schedule", "Training", &C::steps},
      {"stop-at", "N", "End after this step, schedule unchanged; 0: --steps",
       "Training", &C::stop_at},
      {"optimizer", "NAME", "adamw; muon: that, but Muon for layers' matrices",
       "Training", &C::optimizer},
      {"lr", "X", "Peak learning rate", "Training", &C::lr},
      {"lr-scaling", "HOW", "When replicas are missing: none, linear or sqrt",
       "Training", &C::lr_scaling},
      {"warmup", "N", "Steps of rising rate; a cosine to a tenth follows",
       "Training", &C::warmup},
      {"weight-decay", "X", "On matrices; biases and norms have none",
       "Training", &C::weight_decay},
      {"clip", "X", "Longest gradient (2-norm); 0: any", "Training", &C::clip},
      {"recompute-activations", "",
       "Compute each layer a second time in backward instead of keeping its\n"
       "activations: less memory, the same losses",
       "Training", &C::recompute_activations},
      {"dtype", "NAME",
       "Of forward, backward and messages: fp32 or bf16; weights in training\n"
       "and optimizer state are fp32 either way",
       "Sharding", &C::dtype},
      {"strategy", "NAME",
       "full_shard: parameters whole only in use; shard_grad_op: whole from\n"
       "forward to backward; no_shard, ddp: always (ddp: by replicate)",
       "Sharding", &C::strategy},
      {"budget", "SIZE",
       "Bytes of whole parameters per rank, e.g. 512MiB; 0: by strategy",
       "Sharding", &C::budget},
      {"exchange", "NAME",
       "shm: memory of one host; collective: Gloo; auto: shm where it can be",
       "Sharding", &C::exchange},
      {"replicate", "N",
       "Replicas of as many ranks each, which hold the whole model and sum\n"
       "gradients with the others; 1: all ranks hold it together",
       "Sharding", &C::replicate},
      {"hook", "NAME",
       "ddp: what becomes of gradients: mean, bf16, fp16 (half the bytes),\n"
       "power_sgd (few); none: mean by the exchange",
       "Sharding", &C::hook},
      {"hook-rank", "N", "Of power_sgd: columns kept of each matrix",
       "Sharding", &C::hook_rank},
      {"run", "DIR", "Folder for what the run writes; new: runs/<time>",
       "Output", &C::run},
      {"save-every", "N",
       "Steps between checkpoints in DIR/checkpoints, also made at the end,\n"
       "at SIGUSR1, and at SIGTERM and Ctrl-C before the run ends; a run with\n"
       "the same DIR goes on from the newest, on any number of ranks. 0: none",
       "Output", &C::save_every},
      {"keep", "N", "Newest checkpoints that are kept; 0: all", "Output",
       &C::keep},
      {"eval-every", "N", "Steps between validations; 0: at the end only",
       "Output", &C::eval_every},
      {"eval-batches", "N", "Global batches per validation", "Output",
       &C::eval_batches},
      {"sample-tokens", "N", "Length of the sample at the end; 0: none",
       "Output", &C::sample_tokens},
      {"peak-flops", "X",
       "Operations per second that a rank can do at most, for the share of it\n"
       "that training uses (MFU); 0: measured at the start",
       "Output", &C::peak_flops},
      {"quiet", "", "Only errors", "Output", &C::quiet},
  });
  return kRows;
}

bool names_path(const OptionSpec& row) {
  const std::string_view value = row.value;
  return value == "PATH" || value == "DIR";
}

std::string text_of(const OptionSpec& row, const TrainConfig& config) {
  return std::visit(
      [&](auto member) -> std::string {
        const auto& value = config.*member;
        using T = std::remove_cvref_t<decltype(value)>;
        if constexpr (std::is_same_v<T, std::string>) {
          return value;
        } else if constexpr (std::is_same_v<T, ByteSize>) {
          return format_bytes(value);
        } else {
          return Json(value).dump();
        }
      },
      row.member);
}

ByteSize parse_bytes(std::string_view text) {
  std::string unit;
  auto number = text;
  while (!number.empty() && (number.back() < '0' || number.back() > '9')) {
    const char c = number.back();
    unit.insert(unit.begin(), c >= 'A' && c <= 'Z' ? char(c - 'A' + 'a') : c);
    number.remove_suffix(1);
  }
  if (!unit.empty() && unit.front() == ' ') {
    unit.erase(unit.begin());
  }
  double value = 0;
  for (const auto& [name, bytes] : kSizeSuffixes) {
    if (unit == name && parse_whole(number, value) && value >= 0.0 &&
        value * static_cast<double>(bytes) < 0x1p63) {
      // Whole numbers stay exact above 2^53.
      std::int64_t whole = 0;
      const auto exact = parse_whole(number, whole)
          ? whole * bytes
          : std::llround(value * static_cast<double>(bytes));
      return {exact};
    }
  }
  refuse("size", "a size such as 512MiB", in_quotes(text));
}

std::string format_bytes(ByteSize bytes) {
  constexpr std::array<SizeSuffix, 3> kNames = {
      {{"GiB", 1LL << 30}, {"MiB", 1LL << 20}, {"KiB", 1LL << 10}}};
  for (const auto& [name, size] : kNames) {
    if (bytes.count != 0 && bytes.count % size == 0) {
      return std::to_string(bytes.count / size) + name;
    }
  }
  return std::to_string(bytes.count);
}

TrainConfig make_config(
    const std::map<std::string, std::string>& flags,
    const std::string& file_path,
    const std::string& file_text) {
  TrainConfig config;
  if (!file_path.empty()) {
    take_file(config, file_path, file_text);
  }
  for (const auto& [name, text] : flags) {
    take_flag(config, name, text);
  }
  check(config);
  return config;
}

TrainConfig replica_invariant_config(TrainConfig config) {
  const TrainConfig usual;
  config.run = usual.run;
  config.save_every = usual.save_every;
  config.keep = usual.keep;
  config.eval_every = usual.eval_every;
  config.eval_batches = usual.eval_batches;
  config.sample_tokens = usual.sample_tokens;
  config.peak_flops = usual.peak_flops;
  config.quiet = usual.quiet;
  config.stop_at = usual.stop_at;
  return config;
}

std::string to_json(
    const TrainConfig& config,
    const std::map<std::string, std::string>& about) {
  Json json = Json::object();
  for (const auto& row : option_specs()) {
    std::visit(
        [&](auto member) {
          const auto& value = config.*member;
          using T = std::remove_cvref_t<decltype(value)>;
          if constexpr (std::is_same_v<T, ByteSize>) {
            json[row.name] = format_bytes(value);
          } else {
            json[row.name] = value;
          }
        },
        row.member);
  }
  json[kAbout] = about;
  return json.dump(2) + "\n";
}

}  // namespace sherd::tools
