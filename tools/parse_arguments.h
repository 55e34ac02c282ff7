// SPDX-License-Identifier: Apache-2.0
//
// How each program of the sherd command reads its command line. Thread rule: one
// thread.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace sherd::tools {

// The words after the program's name.
std::vector<std::string> words_of(int argc, char** argv);

// Lets `app` parse the words. Returns false if they asked for help or the version, which is then
// printed. Throws Error for any mistake, and if that could not be printed; for an unknown option or
// command it names the nearest known one.
bool parse_arguments(CLI::App& app, std::vector<std::string> words);

}  // namespace sherd::tools
