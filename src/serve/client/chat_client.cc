// The streaming client behind `fathom chat`, over libcurl.
#include "serve/client/chat_client.h"

#include <curl/curl.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "base/printable.h"

namespace fathom::serve {
namespace {

using Json = nlohmann::json;

constexpr size_t kLineBytesMax = size_t{16} << 20;  // of one event
constexpr size_t kBodyBytesMax = size_t{1} << 20;   // of a list of models, or of an error
constexpr size_t kShownBytesMax = 300;              // of a server's words in a message

// One transfer: a handle, its headers and where the bytes go.
class Transfer {
 public:
  Transfer(const std::string& url, const std::string& api_key) : curl_(curl_easy_init(), curl_easy_cleanup) {
    curl_easy_setopt(curl_.get(), CURLOPT_URL, url.c_str());
    curl_easy_setopt(curl_.get(), CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(curl_.get(), CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(curl_.get(), CURLOPT_NOPROXY, "*");
    add_header("Content-Type: application/json");
    if (!api_key.empty()) add_header("Authorization: Bearer " + api_key);
  }
  ~Transfer() { curl_slist_free_all(headers_); }
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;

  CURL* handle() { return curl_.get(); }
  // `sink` returns false to end the transfer.
  CURLcode run(std::function<bool(std::string_view)> sink) {
    sink_ = std::move(sink);
    curl_easy_setopt(curl_.get(), CURLOPT_HTTPHEADER, headers_);
    curl_easy_setopt(curl_.get(), CURLOPT_WRITEDATA, this);
    curl_easy_setopt(curl_.get(), CURLOPT_WRITEFUNCTION, &Transfer::write);
    return curl_easy_perform(curl_.get());
  }
  long status() {
    long code = 0;
    curl_easy_getinfo(curl_.get(), CURLINFO_RESPONSE_CODE, &code);
    return code;
  }

 private:
  void add_header(const std::string& line) { headers_ = curl_slist_append(headers_, line.c_str()); }
  static size_t write(char* data, size_t, size_t bytes, void* self) {
    return static_cast<Transfer*>(self)->sink_({data, bytes}) ? bytes : 0;
  }

  std::unique_ptr<CURL, void (*)(CURL*)> curl_;
  curl_slist* headers_ = nullptr;
  std::function<bool(std::string_view)> sink_;
};

// As OpenAI's API names what does not fit the context.
bool says_context_is_full(const std::string& body) {
  const Json json = Json::parse(body, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("error")) return false;
  const Json& error = json["error"];
  return error.is_object() && error.contains("code") && error["code"] == "context_length_exceeded";
}

// What a server says of itself in an error's body, or the body's beginning, or at least the status.
std::string server_message(const std::string& body, long http_status) {
  const Json json = Json::parse(body, nullptr, /*allow_exceptions=*/false);
  if (json.is_object() && json.contains("error")) {
    const Json& error = json["error"];
    if (error.is_string()) return error.get<std::string>();
    if (error.is_object() && error.contains("message") && error["message"].is_string()) {
      return error["message"].get<std::string>();
    }
  }
  return body.empty() ? fmt::format("HTTP status {}", http_status) : body.substr(0, kShownBytesMax);
}

Status odd_answer(std::string_view what) {
  return make_status(StatusCode::kUnavailable, "not an answer of a chat API: {}", what);
}

// A member that may be absent or null but must otherwise be of its kind.
Status read_text(const Json& object, const char* name, std::string& value) {
  const auto it = object.find(name);
  if (it == object.end() || it->is_null()) return ok_status();
  if (!it->is_string()) return odd_answer(fmt::format("{} is no text", name));
  value = it->get<std::string>();
  return ok_status();
}
Status read_count(const Json& object, const char* name, int64_t& value) {
  const auto it = object.find(name);
  if (it == object.end() || it->is_null()) return ok_status();
  constexpr uint64_t kCountMax = uint64_t{1} << 53;
  if (!it->is_number_unsigned() || it->get<uint64_t>() > kCountMax) {
    return odd_answer(fmt::format("{} is no count", name));
  }
  value = it->get<int64_t>();
  return ok_status();
}

// Reads a stream of events: `data:` lines with one chunk each, the last of them [DONE].
class AnswerReader {
 public:
  AnswerReader(ChatOutcome& outcome, const std::function<void(const ChatDelta&)>& on_delta)
      : outcome_(outcome), on_delta_(on_delta) {}

  bool done() const { return done_; }

  Status push(std::string_view bytes) {
    size_t searched = buffer_.size();
    buffer_.append(bytes);
    size_t begin = 0;
    for (size_t end; (end = buffer_.find('\n', searched)) != std::string::npos; searched = begin) {
      RETURN_IF_ERROR(read_line(std::string_view(buffer_).substr(begin, end - begin)));
      begin = end + 1;
    }
    buffer_.erase(0, begin);
    if (buffer_.size() > kLineBytesMax) return odd_answer(fmt::format("a line over {} bytes", kLineBytesMax));
    return ok_status();
  }

 private:
  Status read_line(std::string_view line) {
    if (line.ends_with('\r')) line.remove_suffix(1);
    constexpr std::string_view kField = "data:";
    if (!line.starts_with(kField)) return ok_status();  // comments and other fields
    line.remove_prefix(kField.size());
    if (line.starts_with(' ')) line.remove_prefix(1);
    if (line == "[DONE]") {
      done_ = true;
      return ok_status();
    }
    const Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object()) return odd_answer(line.substr(0, kShownBytesMax));
    if (json.contains("error")) {
      return make_status(StatusCode::kUnavailable, "{}", server_message(std::string(line), 200));
    }
    return read_chunk(json);
  }

  Status read_chunk(const Json& json) {
    if (const auto usage = json.find("usage"); usage != json.end() && usage->is_object()) {
      RETURN_IF_ERROR(read_count(*usage, "prompt_tokens", outcome_.prompt_tokens));
      RETURN_IF_ERROR(read_count(*usage, "prompt_cache_hit_tokens", outcome_.hit_tokens));
      RETURN_IF_ERROR(read_count(*usage, "completion_tokens", outcome_.completion_tokens));
    }
    const auto choices = json.find("choices");
    if (choices == json.end() || !choices->is_array()) return odd_answer("a chunk without choices");
    if (choices->empty()) return ok_status();
    const Json& choice = (*choices)[0];
    if (!choice.is_object()) return odd_answer("a choice that is no object");
    ChatDelta delta;
    if (const auto piece = choice.find("delta"); piece != choice.end() && piece->is_object()) {
      RETURN_IF_ERROR(read_text(*piece, "reasoning_content", delta.reasoning));
      RETURN_IF_ERROR(read_text(*piece, "content", delta.content));
    }
    RETURN_IF_ERROR(read_text(choice, "finish_reason", outcome_.finish_reason));
    outcome_.content += delta.content;
    if (!delta.reasoning.empty() || !delta.content.empty()) on_delta_(delta);
    return ok_status();
  }

  ChatOutcome& outcome_;
  const std::function<void(const ChatDelta&)>& on_delta_;
  std::string buffer_;
  bool done_ = false;
};

std::string server_root(std::string url) {
  const auto drop_slashes = [&] { url.erase(url.find_last_not_of('/') + 1); };
  drop_slashes();
  constexpr std::string_view kApi = "/v1";
  if (url.size() > kApi.size() && std::string_view(url).substr(url.size() - kApi.size()) == kApi) {
    url.resize(url.size() - kApi.size());
    drop_slashes();
  }
  return url;
}

// Appends what fits; false when it does not.
bool append_body(std::string& body, std::string_view bytes) {
  if (body.size() + bytes.size() > kBodyBytesMax) return false;
  body.append(bytes);
  return true;
}

}  // namespace

Status validate_chat_url(std::string_view url) {
  const auto begins = [url](std::string_view scheme) {
    return url.size() > scheme.size() && curl_strnequal(url.data(), scheme.data(), scheme.size()) != 0;
  };
  if (!begins("http://") && !begins("https://")) {
    return invalid_argument("--url {}: expected http://HOST:PORT or https://HOST:PORT", url);
  }
  if (has_control_characters(url) || url.find(' ') != std::string_view::npos) {
    return invalid_argument("--url {}: holds a space or a control character", url);
  }
  return ok_status();
}

ChatClient::ChatClient(std::string url, std::string api_key)
    : url_(server_root(std::move(url))), api_key_(std::move(api_key)) {}

Result<std::string> ChatClient::model_name(double timeout_s) const {
  Transfer transfer(url_ + "/v1/models", api_key_);
  curl_easy_setopt(transfer.handle(), CURLOPT_TIMEOUT_MS, static_cast<long>(timeout_s * 1000));
  std::string body;
  const CURLcode code = transfer.run([&](std::string_view bytes) { return append_body(body, bytes); });
  if (code == CURLE_WRITE_ERROR)
    return invalid_argument("{}/v1/models: more than {} bytes", url_, kBodyBytesMax);
  if (code != CURLE_OK)
    return make_status(StatusCode::kUnavailable, "{}: {}", url_, curl_easy_strerror(code));
  if (transfer.status() == 404)
    return make_status(StatusCode::kNotFound, "{}/v1/models: not served there", url_);
  if (transfer.status() != 200) {
    return invalid_argument("{}: {}", url_, server_message(body, transfer.status()));
  }
  const Json json = Json::parse(body, nullptr, /*allow_exceptions=*/false);
  const Json* data = json.is_object() && json.contains("data") ? &json["data"] : nullptr;
  if (data != nullptr && data->is_array() && !data->empty() && (*data)[0].is_object()) {
    const auto id = (*data)[0].find("id");
    if (id != (*data)[0].end() && id->is_string()) return id->get<std::string>();
  }
  return make_status(StatusCode::kNotFound, "{}/v1/models: not a list of models", url_);
}

Result<ChatOutcome> ChatClient::chat(const std::vector<ChatTurn>& messages, const Options& options,
                                     const std::function<void(const ChatDelta&)>& on_delta,
                                     const std::atomic<bool>& interrupt) const {
  Json request{
      {"stream", true}, {"stream_options", {{"include_usage", true}}}, {"temperature", options.temperature}};
  if (options.max_tokens > 0) request["max_tokens"] = options.max_tokens;
  for (const ChatTurn& turn : messages)
    request["messages"].push_back({{"role", turn.role}, {"content", turn.content}});
  const std::string body = request.dump(-1, ' ', false, Json::error_handler_t::replace);

  Transfer transfer(url_ + "/v1/chat/completions", api_key_);
  curl_easy_setopt(transfer.handle(), CURLOPT_POSTFIELDS, body.c_str());
  curl_easy_setopt(transfer.handle(), CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(body.size()));
  // Looked at about once a second even when nothing arrives.
  curl_easy_setopt(transfer.handle(), CURLOPT_NOPROGRESS, 0L);
  curl_easy_setopt(transfer.handle(), CURLOPT_XFERINFODATA, const_cast<std::atomic<bool>*>(&interrupt));
  curl_easy_setopt(
      transfer.handle(), CURLOPT_XFERINFOFUNCTION,
      +[](void* flag, curl_off_t, curl_off_t, curl_off_t, curl_off_t) -> int {
        return static_cast<const std::atomic<bool>*>(flag)->load() ? 1 : 0;
      });

  ChatOutcome outcome;
  AnswerReader reader(outcome, on_delta);
  Status read = ok_status();
  std::string error_text;
  const CURLcode code = transfer.run([&](std::string_view bytes) {
    if (transfer.status() != 200) return append_body(error_text, bytes);
    if (!reader.done()) read = reader.push(bytes);
    return read.ok() && !interrupt.load();
  });
  outcome.interrupted = interrupt.load();
  if (outcome.interrupted) return outcome;
  RETURN_IF_ERROR(read);
  if (code != CURLE_OK)
    return make_status(StatusCode::kUnavailable, "{}: {}", url_, curl_easy_strerror(code));
  if (transfer.status() != 200) {
    const bool full = says_context_is_full(error_text);
    return make_status(full ? StatusCode::kResourceExhausted : StatusCode::kUnavailable, "{}",
                       server_message(error_text, transfer.status()));
  }
  if (!reader.done())
    return make_status(StatusCode::kUnavailable, "{}: the answer ends without [DONE]", url_);
  return outcome;
}

}  // namespace fathom::serve
