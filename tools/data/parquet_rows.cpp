// SPDX-License-Identifier: Apache-2.0
#include "data/parquet_rows.h"

#include <sys/wait.h>
#include <nlohmann/json.hpp>
#include <sherd/base/error.h>
#include "command_lines.h"
#include "format_text.h"

namespace sherd::tools {
namespace {

// Writes one JSON object per line: {"text": ...} for a row, or a last {"missing": ...} or
// {"refused": ...} with the reason. It ends silently if nobody reads on.
constexpr auto kScript = R"python(
import sys

sys.path = [folder for folder in sys.path if folder]  # Not the current one.
import json, signal

signal.signal(signal.SIGPIPE, signal.SIG_DFL)
path, column = sys.argv[1:]


def write(kind, text):
    line = json.dumps({kind: text}, ensure_ascii=False) + "\n"
    sys.stdout.buffer.write(line.encode(errors="replace"))


def is_text(kind):
    if pyarrow.types.is_dictionary(kind):
        kind = kind.value_type
    return str(kind) in ("string", "large_string", "string_view")


def problem(schema):
    columns = ", ".join(f"{field.name} ({field.type})" for field in schema)
    if schema.names.count(column) != 1 or not is_text(schema.field(column).type):
        return f'expected one column "{column}" of text, found the columns {columns}'


def rows():
    with pyarrow.parquet.ParquetFile(path, pre_buffer=False) as file:
        refused = problem(file.schema_arrow)
        if refused:
            return write("refused", refused)
        for batch in file.iter_batches(batch_size=256, columns=[column]):
            for text in batch.column(column).to_pylist():
                if text:
                    write("text", text)


try:
    import pyarrow.parquet
except ImportError as error:
    write("missing", str(error))
    sys.exit()
try:
    rows()
except Exception as error:
    write("refused", f"expected a whole Parquet file, found: {error}")
)python";

std::string how_to_read_parquet(const std::string& found) {
  return "expected a Python that has pyarrow, which reads Parquet, found: " +
      found +
      ". Make one with `python3 -m venv arrow && arrow/bin/pip install "
      "pyarrow` and add `--python arrow/bin/python`; or convert the file to "
      "JSON lines where there is one: `pandas.read_parquet(path).to_json(out, "
      "orient=\"records\", lines=True)`";
}

// The text of a row; throws if the line says what was wrong with the file.
std::string text_of(std::string_view line, const std::string& path) {
  const auto json =
      nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  const bool object = json.is_object();
  if (object && json.contains("text") && json["text"].is_string()) {
    return json["text"].get<std::string>();
  }
  if (object && json.contains("missing") && json["missing"].is_string()) {
    throw Error(
        path + ": " + how_to_read_parquet(json["missing"].get<std::string>()));
  }
  throw Error(
      path + ": " +
      (object && json.contains("refused") && json["refused"].is_string()
           ? json["refused"].get<std::string>()
           : "expected rows from Python, found: " + std::string(line)));
}

std::string problem_of(int status, const std::string& python) {
  if (WIFEXITED(status)) {
    const int code = WEXITSTATUS(status);
    return code == 127 || code == 126
        ? how_to_read_parquet("no program " + python)
        : python + " ended with status " + std::to_string(code);
  }
  return python + " was ended by signal " + std::to_string(WTERMSIG(status));
}

}  // namespace

bool is_parquet(const std::string& path) { return path.ends_with(".parquet"); }

void for_each_parquet_row(
    const std::string& path,
    const DocumentOptions& options,
    const std::function<void(std::string_view)>& each) {
  CommandLines lines(
      "exec " + shell_quoted(options.python) + " -c " + shell_quoted(kScript) +
      " " + shell_quoted(path) + " " + shell_quoted(options.field));
  while (const auto line = lines.next()) {
    each(text_of(*line, path));
  }
  const int status = lines.close();
  if (status != 0) {
    throw Error(path + ": " + problem_of(status, options.python));
  }
}

}  // namespace sherd::tools
