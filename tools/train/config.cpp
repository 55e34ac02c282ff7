// SPDX-License-Identifier: Apache-2.0
#include "train/config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <iterator>
#include <set>
#include <type_traits>
#include <utility>
#include <vector>
#include <nlohmann/json.hpp>
#include "base/text.h"
#include "format_text.h"
#include "nearest_name.h"
#include "refuse.h"

namespace sherd::tools {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kAbout = "about";
constexpr std::int64_t kSecondsMax = 1'000'000;
// The help of options that gpt does not have begins with this.
constexpr std::string_view kLlamaOnly = "All but gpt";

std::string in_quotes(std::string_view text) {
  std::string result = "'";
  return result.append(text).append("'");
}

// What the type of an option is, in words.
const char* expected_for(const OptionSpec& row) {
  constexpr const char* kExpected[] = {
      "a whole number", "a number", "true or false", "a text",
      "a size such as 512MiB"};
  static_assert(
      std::size(kExpected) == std::variant_size_v<decltype(row.member)>);
  return kExpected[row.member.index()];
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

std::optional<ByteSize> size_in(std::string_view text) {
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
  const auto value = parse_number<double>(number);
  for (const auto& [name, bytes] : kSizeSuffixes) {
    if (unit == name && value && *value >= 0.0 &&
        *value * static_cast<double>(bytes) < 0x1p63) {
      // Whole numbers stay exact above 2^53.
      const auto whole = parse_number<std::int64_t>(number);
      return ByteSize{
          whole ? *whole * bytes
                : std::llround(*value * static_cast<double>(bytes))};
    }
  }
  return std::nullopt;
}

// What a flag or a file says, if it fits the type.
template <typename T>
std::optional<T> read(std::string_view text) {
  if constexpr (std::is_same_v<T, bool>) {
    const bool value = text == "true";
    return value || text == "false" ? std::optional(value) : std::nullopt;
  } else if constexpr (std::is_same_v<T, std::string>) {
    return std::string(text);
  } else if constexpr (std::is_same_v<T, ByteSize>) {
    return size_in(text);
  } else {
    const auto number = parse_number<T>(text);
    return number && std::isfinite(static_cast<double>(*number)) ? number
                                                                 : std::nullopt;
  }
}

// get() would also convert values of other types.
template <typename T>
bool is_a(const Json& json) {
  if constexpr (std::is_same_v<T, bool>) {
    return json.is_boolean();
  } else if constexpr (std::is_same_v<T, std::string>) {
    return json.is_string();
  } else if constexpr (std::is_same_v<T, double>) {
    return json.is_number() && std::isfinite(json.get<double>());
  } else {
    return json.is_number_integer() &&
        (!json.is_number_unsigned() ||
         std::in_range<std::int64_t>(json.get<std::uint64_t>()));
  }
}

template <typename T>
std::optional<T> read(const Json& json) {
  if constexpr (std::is_same_v<T, ByteSize>) {
    if (json.is_string()) {
      return size_in(json.get<std::string>());
    }
    const auto count = read<std::int64_t>(json);
    return count ? std::optional(ByteSize{*count}) : std::nullopt;
  } else {
    return is_a<T>(json) ? std::optional(json.get<T>()) : std::nullopt;
  }
}

// Whether the source fits the option.
template <typename Source>
bool set(TrainConfig& config, const OptionSpec& row, const Source& source) {
  return std::visit(
      [&](auto member) {
        auto& value = config.*member;
        const auto found =
            read<std::remove_reference_t<decltype(value)>>(source);
        value = found.value_or(value);
        return found.has_value();
      },
      row.member);
}

Json json_of(const OptionSpec& row, const TrainConfig& config) {
  return std::visit(
      [&](auto member) -> Json {
        const auto& value = config.*member;
        if constexpr (std::is_same_v<decltype(value), const ByteSize&>) {
          return format_bytes(value);
        } else {
          return value;
        }
      },
      row.member);
}

const OptionSpec* find_row(std::string_view name) {
  for (const auto& row : option_specs()) {
    if (name == row.name) {
      return &row;
    }
  }
  return nullptr;
}

// In quotes, with U+FFFD for what is no UTF-8.
std::string shown(const std::string& text) {
  return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
}

bool is_utf8(const std::string& text) {
  return shown(text) ==
      Json(text).dump(-1, ' ', false, Json::error_handler_t::ignore);
}

void take_flag(
    TrainConfig& config, const std::string& name, const std::string& text) {
  const auto* row = find_row(name);
  if (row == nullptr) {
    refuse("--" + name, "a known option", "none of that name");
  }
  if (!is_utf8(text)) {
    refuse("--" + name, "a text in UTF-8", shown(text));
  }
  if (!set(config, *row, std::string_view(text))) {
    refuse("--" + name, expected_for(*row), in_quotes(text));
  }
}

std::vector<std::string> option_names() {
  std::vector<std::string> names;
  for (const auto& row : option_specs()) {
    names.emplace_back(row.name);
  }
  return names;
}

// Relative paths in a file begin at the file's folder.
std::string seen_from_folder_of(
    const std::string& file, const std::string& path) {
  return path_seen_from(
      std::filesystem::path(file).parent_path().string(), path);
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
  if (!set(config, *row, value)) {
    refuse(where, expected_for(*row), value.dump());
  }
  if (names_path(*row)) {
    auto& target = config.*std::get<std::string TrainConfig::*>(row->member);
    target = seen_from_folder_of(path, target);
  }
}

void take_file(
    TrainConfig& config, const std::string& path, const std::string& text) {
  Json file;
  try {
    file = Json::parse(text);
  } catch (const Json::parse_error& error) {
    refuse(
        path, "a JSON object",
        "invalid JSON: the first error is at byte " +
            std::to_string(error.byte));
  } catch (const Json::exception& error) {
    refuse(path, "a JSON object", error.what());
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

// Gives options their presets again, each by its name or that of its group.
void take_presets(
    TrainConfig& config, const std::set<std::string_view>& names) {
  for (const auto& row : option_specs()) {
    if (names.contains(row.name) || names.contains(row.group)) {
      std::visit(
          [&](auto member) { config.*member = TrainConfig().*member; },
          row.member);
    }
  }
}

void check_sizes(const TrainConfig& config) {
  for (const auto& row : option_specs()) {
    if (!row.least) {
      continue;
    }
    const auto flag = "--" + std::string(row.name);
    if (const auto* size = std::get_if<ByteSize TrainConfig::*>(&row.member)) {
      expect_at_least(flag, *row.least, (config.**size).count);
    } else if (
        const auto* real = std::get_if<double TrainConfig::*>(&row.member)) {
      expect_at_least(flag, *row.least, config.**real);
    } else {
      expect_at_least(
          flag, *row.least,
          config.*std::get<std::int64_t TrainConfig::*>(row.member));
    }
  }
}

void share(const char* name, double found) {
  if (found < 0.0 || found >= 1.0) {
    refuse(
        "--" + std::string(name), "a share in [0, 1)", std::to_string(found));
  }
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

// `where` says in which runs the option is not free.
void expect_preset(
    const TrainConfig& config, const OptionSpec& row, const char* where) {
  const auto found = text_of(row, config);
  const auto preset = text_of(row, {});
  if (found != preset) {
    refuse("--" + std::string(row.name), preset + where, found);
  }
}

void expect_presets(
    const TrainConfig& config,
    const std::vector<const char*>& names,
    const char* where) {
  for (const char* name : names) {
    expect_preset(config, *find_row(name), where);
  }
}

void check_gpt(const TrainConfig& config) {
  for (const auto& row : option_specs()) {
    if (std::string_view(row.help).starts_with(kLlamaOnly)) {
      expect_preset(config, row, " with --model gpt");
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
        "--dropout", "0 with --model " + model, format("%g", config.dropout));
  }
  for (const auto& [name, found] :
       {std::pair{"rope-theta", config.rope_theta},
        std::pair{"norm-epsilon", config.norm_epsilon}}) {
    if (!(found > 0.0)) {
      refuse(
          "--" + std::string(name), "a positive number", std::to_string(found));
    }
  }
  expect_no_window_of_llama(config);
  parse_rope_scaling(config.rope_scaling);
}

// Refuses options that belong to sharding only.
void check_ddp(const TrainConfig& config) {
  if (config.hook != "none" && config.exchange == "shm") {
    refuse(
        "--exchange", "auto or collective with a --hook, which sends messages",
        config.exchange);
  }
  expect_presets(
      config, {"dtype", "budget", "secondary-ranks"}, " with --strategy ddp");
  expect_presets(
      config, {"replicate"},
      " with --strategy ddp, where every rank is a replica");
}

// Refuses options that need memory of the host.
void check_cuda(const TrainConfig& config) {
  if (config.exchange != "auto" && config.exchange != "collective") {
    refuse(
        "--exchange", "auto or collective with --device cuda", config.exchange);
  }
}

// The memory limit decides what these options would set.
void check_memory(const TrainConfig& config) {
  expect_presets(config, {"recompute-activations", "budget"}, " with --memory");
  if (config.strategy != "full_shard" && config.strategy != "no_shard") {
    refuse(
        "--strategy", "full_shard or no_shard with --memory", config.strategy);
  }
}

}  // namespace

std::int64_t attention_width(const TrainConfig& config) {
  return config.head_width > 0 ? config.heads * config.head_width
                               : config.width;
}

bool whole_on_each_rank(const TrainConfig& config) {
  return config.strategy == "ddp" || config.strategy == "no_shard";
}

void expect_no_window_of_llama(const TrainConfig& config) {
  if (config.model == "llama" && config.sliding_window != 0) {
    refuse(
        "--sliding-window",
        "0 with --model llama (--model mistral is a Llama with a window)",
        std::to_string(config.sliding_window));
  }
}

void check_config(const TrainConfig& config) {
  check_sizes(config);
  expect_one_of(
      "--model", {"gpt", "llama", "mistral", "qwen2", "qwen3"}, config.model);
  expect_one_of("--dtype", {"fp32", "bf16", "fp16"}, config.dtype);
  expect_one_of("--optimizer", {"adamw", "muon"}, config.optimizer);
  expect_one_of("--lr-scaling", {"none", "linear", "sqrt"}, config.lr_scaling);
  expect_one_of(
      "--lr-decay", {"cosine", "linear", "constant"}, config.lr_decay);
  expect_one_of(
      "--strategy", {"full_shard", "shard_grad_op", "no_shard", "ddp"},
      config.strategy);
  expect_one_of(
      "--hook", {"none", "mean", "bf16", "fp16", "power_sgd"}, config.hook);
  expect_one_of(
      "--exchange", {"auto", "collective", "shm", "hierarchical"},
      config.exchange);
  expect_one_of("--device", {"cpu", "cuda"}, config.device);
  if (config.device == "cuda") {
    check_cuda(config);
  }
  if (config.strategy == "ddp") {
    check_ddp(config);
  } else if (
      config.hook == "power_sgd" && !whole_on_each_rank(config) &&
      config.replicate == 1) {
    refuse(
        "--hook",
        "none, mean, bf16 or fp16 without replicas (--replicate, --strategy "
        "no_shard or ddp)",
        config.hook);
  }
  if (config.memory.count > 0) {
    check_memory(config);
  }
  share("dropout", config.dropout);
  share("beta1", config.beta1);
  share("beta2", config.beta2);
  share("ema", config.ema);
  if (config.lr_min_ratio < 0.0 || config.lr_min_ratio > 1.0) {
    refuse(
        "--lr-min-ratio", "a share in [0, 1]",
        std::to_string(config.lr_min_ratio));
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
  for (const auto& [name, found] :
       {std::pair{"deadline", config.deadline_s},
        std::pair{"rendezvous-deadline", config.rendezvous_deadline_s}}) {
    if (found > kSecondsMax) {
      refuse(
          "--" + std::string(name),
          "at most " + std::to_string(kSecondsMax) + " seconds",
          std::to_string(found));
    }
  }
}

RopeScalingText parse_rope_scaling(const std::string& text) {
  RopeScalingText found{.kind = text.substr(0, text.find(':'))};
  auto rest = std::string_view(text).substr(found.kind.size());
  bool valid = true;
  const auto take = [&](char before, auto& value) {
    const auto end = std::min(rest.find(',', 1), rest.size());
    using Number = std::remove_reference_t<decltype(value)>;
    const auto number = rest.starts_with(before)
        ? parse_number<Number>(rest.substr(1, end - 1))
        : std::nullopt;
    value = number.value_or(value);
    valid = valid && number && std::isfinite(static_cast<double>(value));
    rest.remove_prefix(end);
  };
  const bool llama3 = found.kind == "llama3";
  const bool yarn = found.kind == "yarn";
  if (found.kind == "linear" || llama3 || yarn) {
    take(':', found.factor);
  }
  if (llama3 || yarn) {
    auto& from = llama3 ? found.low_freq_factor : found.beta_fast;
    auto& to = llama3 ? found.high_freq_factor : found.beta_slow;
    take(',', from);
    take(',', to);
    take(',', found.original_positions);
    const bool ordered = llama3 ? from < to : from > to;
    valid = valid && ordered && std::min(from, to) > 0.0 &&
        found.original_positions > 0;
  }
  if (yarn && !rest.empty()) {
    take(',', found.attention_factor);
    valid = valid && found.attention_factor >= 0.0;
  }
  const bool known =
      found.kind == "linear" || llama3 || yarn || found.kind == "none";
  if (!valid || !known || !rest.empty() || !(found.factor >= 1.0)) {
    refuse(
        "--rope-scaling",
        "none, linear:FACTOR, llama3:FACTOR,LOW,HIGH,ORIGINAL with LOW below "
        "HIGH, or yarn:FACTOR,FAST,SLOW,ORIGINAL[,ATTENTION] with FAST above "
        "SLOW, and a factor of at least 1",
        in_quotes(text));
  }
  return found;
}

bool names_path(const OptionSpec& row) {
  const std::string_view value = row.value;
  return value == "PATH" || value == "DIR";
}

std::string text_of(const OptionSpec& row, const TrainConfig& config) {
  const auto json = json_of(row, config);
  return json.is_string() ? json.get<std::string>() : json.dump();
}

ByteSize parse_bytes(std::string_view text) {
  const auto size = size_in(text);
  if (!size) {
    refuse("size", "a size such as 512MiB", in_quotes(text));
  }
  return *size;
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
  auto config = read_config(flags, file_path, file_text);
  check_config(config);
  return config;
}

TrainConfig read_config(
    const std::map<std::string, std::string>& flags,
    const std::string& file_path,
    const std::string& file_text,
    const TrainConfig& defaults) {
  auto config = defaults;
  if (!file_path.empty()) {
    take_file(config, file_path, file_text);
  }
  for (const auto& [name, text] : flags) {
    take_flag(config, name, text);
  }
  return config;
}

TrainConfig replica_invariant_config(TrainConfig config) {
  take_presets(config, {"stop-at", "Output", "Ranks"});
  return config;
}

TrainConfig rank_invariant_config(TrainConfig config) {
  // The run is that of rank 0.
  take_presets(config, {"data", "run", "quiet", "Ranks"});
  for (auto* path : {&config.init_from, &config.profile}) {
    *path = path->empty() ? "" : "given";
  }
  config.peak_flops = config.peak_flops > 0.0 ? 1.0 : 0.0;
  return config;
}

std::string to_json(
    const TrainConfig& config,
    const std::map<std::string, std::string>& about) {
  Json json = Json::object();
  for (const auto& row : option_specs()) {
    json[row.name] = json_of(row, config);
  }
  json[kAbout] = about;
  // A working directory, which paths may begin with, can have any name.
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string path_seen_from(const std::string& folder, const std::string& path) {
  if (path.empty()) {
    return path;
  }
  auto text =
      (std::filesystem::path(folder) / path).lexically_normal().string();
  if (text.size() > 1 && text.back() == '/') {
    text.pop_back();  // For example from "runs/x/.".
  }
  return text;
}

}  // namespace sherd::tools
