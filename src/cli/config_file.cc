// A table is a subcommand, a key one of its flags. Whatever CLI11 would guess at is checked here, where the
// type in the file and the flag's are both known.
#include "cli/config_file.h"

#include <fmt/format.h>

#include "base/toml.h"
#include "cli/parse_error.h"

namespace fathom::cli {
namespace {

constexpr size_t kConfigBytesMax = size_t{1} << 20;

class TomlReader final : public CLI::Config {
 public:
  explicit TomlReader(CLI::App& app) : app_(app) {}

  // Nothing writes configuration files.
  std::string to_config(const CLI::App*, bool, bool, std::string) const override { return {}; }

  // CLI11 expects a problem as one of its exceptions; main.cc ends them all.
  std::vector<CLI::ConfigItem> from_config(std::istream& input) const override {
    const std::string path = app_.get_config_ptr()->results().back();
    std::string text(kConfigBytesMax + 1, '\0');
    input.read(text.data(), static_cast<std::streamsize>(text.size()));
    text.resize(static_cast<size_t>(input.gcount()));
    if (input.bad()) fail("{}: cannot be read", path);
    if (text.size() > kConfigBytesMax) fail("{}: more than {} bytes", path, kConfigBytesMax);
    const toml::parse_result parsed = toml::parse(text, path);
    if (!parsed) {
      const toml::source_position place = parsed.error().source().begin;
      fail("{}:{}:{}: {}", path, place.line, place.column, parsed.error().description());
    }
    std::vector<CLI::ConfigItem> items;
    read_table(path, parsed.table(), app_, {}, items);
    return items;
  }

 private:
  template <typename... Args>
  [[noreturn]] static void fail(fmt::format_string<Args...> format, Args&&... args) {
    throw CLI::ConfigError(fmt::format(format, std::forward<Args>(args)...), CLI::ExitCodes::ConfigError);
  }

  void read_table(const std::string& path, const toml::table& table, CLI::App& command,
                  const std::vector<std::string>& parents, std::vector<CLI::ConfigItem>& items) const {
    for (const auto& [key, node] : table) {
      CLI::ConfigItem item{.parents = parents, .name = std::string(key.str()), .inputs = {}};
      const auto line = key.source().begin.line;
      if (CLI::App* inner = subcommand(command, item.name)) {
        if (!node.is_table())
          fail("{}:{}: {} is a table: [{}]", path, line, item.fullname(), item.fullname());
        std::vector<std::string> inside = parents;
        inside.push_back(item.name);
        read_table(path, *node.as_table(), *inner, inside, items);
        continue;
      }
      CLI::Option* option = flag(command, item.name);
      if (option == nullptr)
        fail("{}: unknown {} {} (line {})", path, node.is_table() ? "table" : "key", item.fullname(), line);
      const std::string wrong = read_values(node, *option, item.inputs);
      if (!wrong.empty()) fail("{}:{}: {}: {}", path, line, item.fullname(), wrong);
      // A flag on the command line wins: what is wrong with it is not the file's.
      if (option->get_expected_max() > 0 && option->count() == 0) {
        const std::string refused = give(item.inputs, *option);
        if (!refused.empty()) fail("{}:{}: {}", path, line, refused);
      }
      items.push_back(std::move(item));  // CLI11 passes over what an option has already
    }
  }

  // Gives an option of whatever command its values; returns the message of one that it does not take.
  static std::string give(const std::vector<std::string>& values, CLI::Option& option) {
    try {
      option.add_result(values);
      option.run_callback();
    } catch (const CLI::ParseError& error) {
      return explain_value(error);
    }
    return {};
  }

  static CLI::App* subcommand(CLI::App& command, const std::string& name) {
    for (CLI::App* inner : command.get_subcommands([](CLI::App*) { return true; })) {
      if (inner->get_name() == name) return inner;
    }
    return nullptr;
  }

  static CLI::Option* flag(CLI::App& command, const std::string& name) {
    if (name.empty() || name[0] == '-') return nullptr;
    CLI::Option* option = command.get_option_no_throw("--" + name);
    return option != nullptr && option->get_configurable() ? option : nullptr;
  }

  // Puts the value or values of `node` into `inputs`; says what is wrong, or nothing.
  static std::string read_values(const toml::node& node, const CLI::Option& option,
                                 std::vector<std::string>& inputs) {
    const toml::array* list = node.as_array();
    if (list == nullptr) return read_value(node, option, inputs);
    if (option.get_expected_max() < 2) return "expected one value, not a list";
    if (list->empty()) return "an empty list";
    for (const toml::node& element : *list) {
      if (std::string wrong = read_value(element, option, inputs); !wrong.empty()) return wrong;
    }
    return {};
  }

  static std::string read_value(const toml::node& node, const CLI::Option& option,
                                std::vector<std::string>& inputs) {
    const bool is_flag = option.get_expected_max() == 0;
    if (const auto* truth = node.as_boolean(); is_flag) {
      if (truth == nullptr) return "expected true or false";
      inputs.emplace_back(truth->get() ? "true" : "false");
      return {};
    }
    const bool takes_text = option.get_type_name().starts_with("TEXT");
    if (const auto* text = node.as_string()) {
      inputs.push_back(text->get());
    } else if (const auto* whole = node.as_integer(); whole != nullptr && !takes_text) {
      inputs.push_back(fmt::format("{}", whole->get()));
    } else if (const auto* real = node.as_floating_point(); real != nullptr && !takes_text) {
      inputs.push_back(fmt::format("{}", real->get()));
    } else {
      return takes_text ? "expected a string" : "expected a number";
    }
    return {};
  }

  CLI::App& app_;
};

}  // namespace

void add_config_option(CLI::App& app) {
  app.set_config("--config", "",
                 "TOML file with a table per subcommand, e.g. [serve], and the flags' names as keys")
      ->expected(1)
      ->check(CLI::Validator([](std::string& path) { return path.empty() ? "names no file" : ""; }, "FILE"));
  app.config_formatter(std::make_shared<TomlReader>(app));
  app.allow_config_extras(CLI::config_extras_mode::error);
  app.footer(
      "Flags may stand in a TOML file: --config FILE, with a table per command and the flags' names as "
      "keys.");
}

}  // namespace fathom::cli
