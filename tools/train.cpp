// SPDX-License-Identifier: Apache-2.0
//
// sherd-train, which `sherd train` becomes: one rank of a training job.
#include <sys/ioctl.h>
#include <unistd.h>
#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>
#include <CLI/CLI.hpp>
#include <sherd/base/error.h>
#include <sherd/data/batches.h>
#include <sherd/data/corpus.h>
#include <sherd/ft/replica_checkpoints.h>
#include <sherd/ft/replica_session.h>
#include <sherd/models/language_model.h>
#include <sherd/optim/schedule.h>
#include <sherd/world/world.h>
#include <torch/utils.h>
#include <torch/version.h>
#include "text_file.h"
#include "train/command_line.h"
#include "train/config.h"
#include "train/curve.h"
#include "train/leave_signal_watcher.h"
#include "train/model.h"
#include "train/progress_display.h"
#include "train/run_checkpoints.h"
#include "train/run_folder.h"
#include "train/training_engine.h"

namespace sherd::tools {
namespace {

constexpr int kUsageError = 2;
constexpr int kTerminated = 128 + 15;  // As if SIGTERM had ended it.
constexpr std::int64_t kHeaderBytes = 8'000'000;
constexpr double kLowestRate = 0.1;  // Share of the peak at the last step.
constexpr std::int64_t kPromptTokens = 32;

double now_s() {
  return std::chrono::duration<double>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// Resident memory of this process; 0 where /proc does not say.
std::int64_t rss_bytes() {
  std::ifstream statm("/proc/self/statm");
  std::int64_t pages_total = 0;
  std::int64_t pages_resident = 0;
  statm >> pages_total >> pages_resident;
  return pages_resident * ::sysconf(_SC_PAGESIZE);
}

int terminal_columns() {
  winsize size = {};
  const bool known = ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0;
  return known && size.ws_col > 0 ? size.ws_col : 80;
}

void print(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

std::string hex(std::uint64_t value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%016" PRIx64, value);
  return text;
}

TrainConfig read_config(const CommandLine& line) {
  std::optional<std::string> text("");
  if (!line.config_path.empty()) {
    text = text_of_file(line.config_path);
  }
  if (!text) {
    throw Error(
        line.config_path + ": expected a readable JSON file, found none");
  }
  return make_config(line.flags, line.config_path, *text);
}

std::unique_ptr<data::Corpus> open_corpus(const TrainConfig& config) {
  const bool headers = config.data.empty();
  const auto limit = headers && config.data_bytes.count == 0
      ? kHeaderBytes
      : config.data_bytes.count;
  return std::make_unique<data::Corpus>(
      headers ? std::string(SHERD_TORCH_HEADERS) : config.data,
      data::CorpusOptions{.bytes_max = limit, .vocabulary = config.vocab});
}

LearningRateSchedule schedule_of(const TrainConfig& config) {
  return {
      .peak = config.lr,
      .floor = config.lr * kLowestRate,
      .warmup_steps = std::min(config.warmup, config.steps),
      .total_steps = config.steps,
      .decay = Decay::kCosine};
}

// Column `column` of what every rank said.
double mean(const std::vector<std::vector<double>>& rows, std::size_t column) {
  double sum = 0;
  for (const auto& row : rows) {
    sum += row[column];
  }
  return sum / static_cast<double>(rows.size());
}

double largest(
    const std::vector<std::vector<double>>& rows, std::size_t column) {
  double result = rows.front()[column];
  for (const auto& row : rows) {
    result = std::max(result, row[column]);
  }
  return result;
}

// One rank's run, from the first step to the sample.
class TrainJob {
 public:
  TrainJob(
      TrainConfig config,
      std::unique_ptr<data::Corpus> corpus,
      const World& world)
      : config_(std::move(config)),
        world_(world),
        mesh_(mesh_of(world, config_)),
        corpus_(std::move(corpus)),
        batches_(
            *corpus_,
            {.batch = config_.batch,
             .sequence = config_.seq,
             .seed = static_cast<std::uint64_t>(config_.seed),
             .rank = world.rank(),
             .world_size = world.size()}),
        model_(make_model(config_, corpus_->vocabulary())),
        progress_(style()) {}

  // Returns the exit status.
  int run() {
    engine_ = std::make_unique<TrainingEngine>(*model_, mesh_, config_);
    const auto last = config_.stop_at > 0 ? config_.stop_at : config_.steps;
    if (is_replica()) {
      return run_replica(last);
    }
    open_folder();
    start_s_ = now_s();
    for (std::int64_t step = first_; step < last; ++step) {
      const auto record = take_step(step, last);
      show(record, last);
      if (save_if_due(record.step, last)) {
        return kTerminated;
      }
      if (!std::isfinite(record.loss)) {
        throw Error(
            "expected a finite loss, found " + std::to_string(record.loss) +
                " at step " + std::to_string(record.step) +
                "; try a lower --lr",
            ErrorCode::kAborted);
      }
    }
    if (checkpoints_) {
      checkpoints_->wait();
    }
    finish();
    close();
    return 0;
  }

 private:
  void close() {
    checkpoints_.reset();
    engine_->close();
    world_.close();
  }

  // ---- one replica of several: sherd run --fault-tolerant ----

  static bool is_replica() {
    return std::getenv("SHERD_COORDINATOR") != nullptr;
  }

  // Returns the exit status.
  int run_replica(std::int64_t last) {
    auto options = replica_options();
    CheckpointState state;
    engine_->add_to(state);
    state.add_buffers(*model_);
    auto checkpoints = replica_checkpoints(state);
    if (checkpoints) {
      options.held = checkpoints->load();
    }
    StepMetrics update;  // The last one.
    ft::ReplicaSession session(
        world_, engine_->named_parameters(), std::move(state),
        [&](std::int64_t step) {
          update.lr = learning_rate_at(step - 1, schedule_of(config_));
          if (config_.lr_scaling != "none") {
            update.lr *= ft::learning_rate_factor(
                scaling(), session.samples_of_update(), options.samples_full);
          }
          update.grad_norm = engine_->update(update.lr);
        },
        options);
    install_signal_handlers();  // From `sherd replica drain`, too.
    std::optional<LeaveSignalWatcher> leaving;
    if (leads()) {
      leaving.emplace(session);
    }
    while (const auto plan = session.begin_step()) {
      if (checkpoints) {
        checkpoints->save_if_due(session, *plan);
      }
      if (plan->step > last) {
        break;
      }
      if (start_s_ == 0) {
        first_ = plan->step - 1;
        const auto path =
            run_path() + "/replica-" + std::to_string(options.replica);
        std::filesystem::create_directories(path);
        open_run_folder(path, /*goes_on=*/true);
        start_s_ = now_s();
      }
      auto record = take_part(*plan, session, last);
      if (record) {
        record->grad_norm = update.grad_norm;
        record->lr = update.lr;
        show(*record, last);
      }
    }
    if (checkpoints) {
      checkpoints->save(session);
    }
    session.close();
    if (checkpoints) {
      checkpoints->wait();
    }
    if (start_s_ > 0) {
      finish();
    }
    const bool leaves = leaving && leaving->asked();
    leaving.reset();
    const bool all_leave = world_.all_gather({leaves ? 1.0 : 0.0})[0][0] > 0;
    const bool left = all_leave && session.step() < last;
    close();
    return left ? kTerminated : 0;
  }

  // A spare waits in it.
  ft::SessionOptions replica_options() const {
    auto options = ft::SessionOptions::from_environment();
    options.config = to_json(replica_invariant_config(config_), {});
    if (config_.lr_scaling != "none") {
      if (options.samples_full == 0) {
        throw Error(
            "--lr-scaling: expected SHERD_SAMPLES, the samples of a step that "
            "lacks no replica, as sherd run sets it; found it unset");
      }
      options.config += std::to_string(options.samples_full);
    }
    return options;
  }

  ft::LearningRateScaling scaling() const {
    return config_.lr_scaling == "linear"
        ? ft::LearningRateScaling::kLinear
        : ft::LearningRateScaling::kSquareRoot;
  }

  std::unique_ptr<ft::ReplicaCheckpoints> replica_checkpoints(
      CheckpointState state) const {
    if (config_.save_every == 0) {
      return nullptr;
    }
    if (config_.run.empty()) {
      throw Error(
          "--save-every: expected --run DIR with it, where replicas that are "
          "started again look for checkpoints; found none");
    }
    state.values = model_metadata(config_, corpus_->vocabulary());
    return std::make_unique<ft::ReplicaCheckpoints>(
        world_, std::move(state),
        ft::ReplicaCheckpointOptions{
            .folder = config_.run + "/checkpoints",
            .save_every = config_.save_every,
            .keep_last = static_cast<int>(config_.keep)});
  }

  // None when the step was not made, or by others.
  std::optional<StepMetrics> take_part(
      const ft::TrainingStep& plan,
      ft::ReplicaSession& session,
      std::int64_t last) {
    StepMetrics record{.step = plan.step};
    const double begin_s = now_s();
    if (config_.dropout > 0.0) {
      torch::manual_seed(seed_of(plan.step));
    }
    std::vector<std::int64_t> numbers;
    for (const auto& samples : plan.samples) {
      for (auto number = samples.begin; number < samples.end; ++number) {
        numbers.push_back(number);
      }
    }
    double loss_here = 0;
    if (!numbers.empty()) {
      const auto batch = batches_.samples(numbers);
      const auto loss = model_->loss(batch.inputs, batch.targets);
      session.last_backward();
      loss.backward();
      loss_here = loss.item<double>();
    }
    if (!session.finish_step() || numbers.empty()) {
      return std::nullopt;
    }
    record.step_s = now_s() - begin_s;
    const auto all = world_.all_gather(
        {loss_here, static_cast<double>(rss_bytes()), record.step_s});
    record.loss = mean(all, 0);
    record.rss_bytes = static_cast<std::int64_t>(largest(all, 1));
    record.step_s = largest(all, 2);
    record.tokens_per_s =
        static_cast<double>(plan.replica_samples * config_.seq) / record.step_s;
    const bool due =
        config_.eval_every > 0 && record.step % config_.eval_every == 0;
    if (due || record.step == last) {
      record.val_loss = validate();
    }
    return record;
  }

  // Whether a signal has ended the run. Ranks get signals at different times:
  // what one has heard in this step all have.
  bool save_if_due(std::int64_t step, std::int64_t last) {
    if (!checkpoints_) {
      return false;
    }
    if (step % config_.save_every == 0 || step == last || asked_ > 0) {
      checkpoints_->save(step);
    }
    if (asked_ < 2) {
      return false;
    }
    checkpoints_->wait();
    say("ended  by SIGTERM, saved at step " + std::to_string(step) +
        "; the same command goes on from there");
    close();
    return true;
  }

  bool leads() const { return world_.rank() == 0; }

  ProgressStyle style() const {
    if (config_.quiet || !leads()) {
      return ProgressStyle::kSilent;
    }
    return ::isatty(STDOUT_FILENO) == 1 ? ProgressStyle::kBar
                                        : ProgressStyle::kLines;
  }

  void say(const std::string& line) {
    if (leads() && !config_.quiet) {
      print(progress_.finish() + line + "\n");
    }
  }

  std::int64_t parameter_count() const {
    std::int64_t count = 0;
    for (const auto& parameter : model_->parameters()) {
      count += parameter.numel();
    }
    return count;
  }

  std::map<std::string, std::string> about() const {
    return {
        {"corpus_path", corpus_->path()},
        {"corpus_hash", hex(corpus_->hash())},
        {"corpus_tokens", std::to_string(corpus_->tokens())},
        {"parameters", std::to_string(parameter_count())},
        {"torch", TORCH_VERSION},
        {"world_size", std::to_string(world_.size())}};
  }

  // Rank 0's: the clocks of others may differ.
  std::string run_path() const {
    return world_
        .all_gather_texts(
            config_.run.empty() && world_.rank() == 0
                ? new_run_path("runs", std::time(nullptr))
                : config_.run)
        .front();
  }

  void open_folder() {
    const auto path = run_path();
    if (config_.save_every > 0) {
      install_signal_handlers();
      checkpoints_.emplace(
          world_, config_, path, *model_, *engine_, batches_,
          corpus_->vocabulary());
      first_ = checkpoints_->resume();
    }
    open_run_folder(path, first_ > 0);
  }

  void open_run_folder(const std::string& path, bool goes_on) {
    if (!leads()) {
      return;
    }
    const auto config = to_json(config_, about());
    folder_ = goes_on ? std::make_unique<RunFolder>(path, config, first_)
                      : std::make_unique<RunFolder>(path, config);
    say("data   " + corpus_->path() + ": " + std::to_string(corpus_->tokens()) +
        " tokens, hash " + hex(corpus_->hash()));
    say("model  " + config_.model + ", " + std::to_string(parameter_count()) +
        " parameters; " + std::to_string(world_.size()) +
        (world_.size() == 1 ? " rank" : " ranks") + ", " + batch_text());
    say("run    " + folder_->path());
    if (first_ > 0) {
      say("goes on behind step " + std::to_string(first_));
    }
  }

  // Mean over the validation rows of all ranks.
  double validate() {
    const torch::NoGradGuard no_grad;
    model_->eval();
    const auto count =
        std::min(config_.eval_batches, batches_.validation_batches());
    double sum = 0;
    for (std::int64_t i = 0; i < count; ++i) {
      const auto batch = batches_.validation(i);
      sum += model_->loss(batch.inputs, batch.targets).item<double>();
    }
    model_->train();
    return mean(world_.all_gather({sum / static_cast<double>(count)}), 0);
  }

  StepMetrics take_step(std::int64_t step, std::int64_t last) {
    StepMetrics record{
        .step = step + 1, .lr = learning_rate_at(step, schedule_of(config_))};
    const double begin_s = now_s();
    if (config_.dropout > 0.0) {  // So that a run that goes on draws the same.
      torch::manual_seed(seed_of(step));
    }
    const auto batch = batches_.next();
    const auto loss = model_->loss(batch.inputs, batch.targets);
    loss.backward();
    record.grad_norm = engine_->update(record.lr);
    record.step_s = now_s() - begin_s;
    const auto all = world_.all_gather(
        {loss.item<double>(), static_cast<double>(rss_bytes()), record.step_s,
         static_cast<double>(take_signal_request())});
    asked_ = static_cast<int>(largest(all, 3));
    // Equal rows on every rank: the mean of the means is the batch's.
    record.loss = mean(all, 0);
    record.rss_bytes = static_cast<std::int64_t>(largest(all, 1));
    record.step_s = largest(all, 2);
    record.tokens_per_s =
        static_cast<double>(config_.batch * config_.seq) / record.step_s;
    const bool due =
        config_.eval_every > 0 && record.step % config_.eval_every == 0;
    if (due || record.step == last) {
      record.val_loss = validate();
    }
    return record;
  }

  void show(const StepMetrics& record, std::int64_t last) {
    if (!leads()) {
      return;
    }
    folder_->add(record);
    if (record.val_loss.has_value()) {
      val_loss_ = record.val_loss;
      write_curve();
    }
    trained_s_ += record.step_s;
    trained_tokens_ += record.tokens_per_s * record.step_s;
    const double done = static_cast<double>(record.step - first_);
    const double per_step_s = (now_s() - start_s_) / done;
    print(progress_.update(
        {.step = record.step,
         .steps = last,
         .loss = record.loss,
         .val_loss = val_loss_,
         .tokens_per_s = tokens_per_s(),
         .rss_bytes = record.rss_bytes,
         .seconds_left = per_step_s * static_cast<double>(last - record.step)},
        record.val_loss.has_value(), now_s(), terminal_columns()));
  }

  // Another one on each rank, which have other rows.
  std::uint64_t seed_of(std::int64_t step) const {
    return (static_cast<std::uint64_t>(config_.seed) << 40U) +
        (static_cast<std::uint64_t>(step) << 16U) +
        static_cast<std::uint64_t>(world_.rank());
  }

  // A replica is told its samples in each step.
  std::string batch_text() const {
    return (is_replica() ? "samples as told"
                         : "batch " + std::to_string(config_.batch)) +
        " x " + std::to_string(config_.seq);
  }

  double tokens_per_s() const {
    return trained_s_ > 0 ? trained_tokens_ / trained_s_ : 0.0;
  }

  void write_curve() const {
    const auto& last = folder_->records().back();
    char facts[160];
    std::snprintf(
        facts, sizeof(facts),
        "%" PRId64 " steps of %s, %d rank%s; last loss %.3f, validation %.3f",
        last.step, batch_text().c_str(), world_.size(),
        world_.size() == 1 ? "" : "s", last.loss,
        last.val_loss.value_or(std::nan("")));
    folder_->write(
        "curve.html",
        curve_html(
            folder_->path(),
            {facts,
             "data " + corpus_->path() + ", hash " + hex(corpus_->hash())},
            folder_->records()));
  }

  void finish() {
    const auto text = sample();
    if (!leads() || folder_->records().empty()) {
      return;
    }
    if (!text.empty()) {
      say("sample (the model goes on after the bar):\n" + text);
    }
    const auto& last = folder_->records().back();
    char summary[160];
    std::snprintf(
        summary, sizeof(summary),
        "done   loss %.3f, validation %.3f, %.0f tokens/s, %s", last.loss,
        last.val_loss.value_or(std::nan("")), tokens_per_s(),
        format_duration(now_s() - start_s_).c_str());
    say(summary);
    say("curve  " + folder_->path() + "/curve.html");
    if (checkpoints_) {
      const auto& path = folder_->path();
      say("go on  sherd run -n " + std::to_string(world_.size()) +
          " -- sherd train --config " + path + "/config.json --run " + path +
          (config_.stop_at > 0 ? " --stop-at 0" : "") + " --steps " +
          std::to_string(2 * config_.steps));
    }
  }

  // Goes on from the start of the validation text. Every rank runs it, since
  // ranks hold the model together, and makes the same tokens.
  std::string sample() {
    if (config_.sample_tokens == 0) {
      return "";
    }
    std::vector<std::int64_t> prompt(static_cast<std::size_t>(
        std::min(kPromptTokens, batches_.validation_tokens())));
    batches_.copy_validation(
        0, static_cast<std::int64_t>(prompt.size()), prompt.data());
    const auto ids = model_->generate(
        prompt,
        {.tokens = config_.sample_tokens,
         .temperature = 0.8,
         .seed = static_cast<std::uint64_t>(config_.seed)});
    return readable(ids, prompt.size());
  }

  // Bytes as text with what a terminal would obey left out; ids as numbers.
  std::string readable(
      const std::vector<std::int64_t>& ids, std::size_t prompt) const {
    std::string text;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      text += i == prompt ? "|" : "";
      if (corpus_->vocabulary() > 256) {
        text += std::to_string(ids[i]) + " ";
        continue;
      }
      const auto c = static_cast<char>(ids[i]);
      const bool plain = c == '\n' || c == '\t' || (c >= ' ' && c <= '~');
      text += plain ? c : '?';
    }
    return text;
  }

  const TrainConfig config_;
  World world_;
  const Mesh mesh_;
  const std::unique_ptr<data::Corpus> corpus_;
  data::GlobalBatches batches_;
  const std::shared_ptr<models::LanguageModel> model_;
  ProgressDisplay progress_;
  std::unique_ptr<TrainingEngine> engine_;
  std::unique_ptr<RunFolder> folder_;  // Rank 0 only.
  std::optional<double> val_loss_;
  std::optional<RunCheckpoints> checkpoints_;
  std::int64_t first_ = 0;  // Steps taken before.
  int asked_ = 0;           // By signals, of any rank.
  double start_s_ = 0;
  double trained_s_ = 0;
  double trained_tokens_ = 0;
};

// What a flag of CLI11 itself, --help or an unknown one, ends with.
int parse_end(const CLI::App& app, const CLI::ParseError& error) {
  if (error.get_exit_code() == 0) {
    return app.exit(error);
  }
  std::fprintf(
      stderr, "sherd train: %s (see sherd train --help)\n", error.what());
  return kUsageError;
}

int fail(const std::string& message, int status) {
  // One line: LibTorch's messages carry a stack trace below theirs.
  std::fprintf(
      stderr, "sherd train: %s\n",
      message.substr(0, message.find('\n')).c_str());
  return status;
}

int train_command(int argc, char** argv) {
  CLI::App app("", "sherd train");
  CommandLine line;
  add_train_options(app, line);
  try {
    app.parse(argc, argv);
    const auto config = read_config(line);
    auto corpus = open_corpus(config);  // Its mistakes need no other rank.
    return TrainJob(config, std::move(corpus), World::from_environment()).run();
  } catch (const CLI::ParseError& error) {
    return parse_end(app, error);
  } catch (const Error& error) {
    const bool usage = error.code() == ErrorCode::kInvalidArgument;
    return fail(error.what(), usage ? kUsageError : 1);
  } catch (const c10::Error& error) {
    return fail(error.what_without_backtrace(), 1);
  }
}

}  // namespace
}  // namespace sherd::tools

int main(int argc, char** argv) {
  try {
    return sherd::tools::train_command(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "sherd train: %s\n", error.what());
    return 1;
  }
}
