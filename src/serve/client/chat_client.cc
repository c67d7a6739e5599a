// The streaming client behind `fathom chat`, over libcurl.
#include "serve/client/chat_client.h"

#include <curl/curl.h>

#include <memory>
#include <nlohmann/json.hpp>

namespace fathom::serve {
namespace {

using Json = nlohmann::json;

// One transfer: a handle, its headers and where the bytes go.
class Transfer {
 public:
  Transfer(const std::string& url, const std::string& api_key) : curl_(curl_easy_init(), curl_easy_cleanup) {
    curl_easy_setopt(curl_.get(), CURLOPT_URL, url.c_str());
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

// Cuts a byte stream into the payloads of its `data:` lines.
class SseReader {
 public:
  void push(std::string_view bytes, const std::function<void(const std::string&)>& on_payload) {
    buffer_.append(bytes);
    size_t end;
    while ((end = buffer_.find('\n')) != std::string::npos) {
      const std::string line = buffer_.substr(0, end);
      buffer_.erase(0, end + 1);
      if (line.rfind("data: ", 0) == 0) on_payload(line.substr(6));
    }
  }

 private:
  std::string buffer_;
};

std::string server_message(const std::string& body) {
  const Json json = Json::parse(body, nullptr, /*allow_exceptions=*/false);
  if (json.is_object() && json.contains("error") && json["error"].is_object()) {
    return json["error"].value("message", body);
  }
  return body.substr(0, 300);
}

void read_chunk(const Json& json, ChatDelta& delta, ChatOutcome& outcome) {
  if (const auto usage = json.find("usage"); usage != json.end() && usage->is_object()) {
    outcome.prompt_tokens = usage->value("prompt_tokens", int64_t{0});
    outcome.hit_tokens = usage->value("prompt_cache_hit_tokens", int64_t{0});
    outcome.completion_tokens = usage->value("completion_tokens", int64_t{0});
  }
  const auto choices = json.find("choices");
  if (choices == json.end() || !choices->is_array() || choices->empty()) return;
  const Json& choice = (*choices)[0];
  const auto text = [](const Json& object, const char* name) {
    const auto it = object.find(name);
    return it != object.end() && it->is_string() ? it->get<std::string>() : std::string();
  };
  if (const auto piece = choice.find("delta"); piece != choice.end() && piece->is_object()) {
    delta.reasoning = text(*piece, "reasoning_content");
    delta.content = text(*piece, "content");
  }
  const std::string reason = text(choice, "finish_reason");
  if (!reason.empty()) outcome.finish_reason = reason;
}

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

}  // namespace

ChatClient::ChatClient(std::string url, std::string api_key)
    : url_(server_root(std::move(url))), api_key_(std::move(api_key)) {}

Result<std::string> ChatClient::model_name(double timeout_s) const {
  Transfer transfer(url_ + "/v1/models", api_key_);
  curl_easy_setopt(transfer.handle(), CURLOPT_TIMEOUT_MS, static_cast<long>(timeout_s * 1000));
  std::string body;
  const CURLcode code = transfer.run([&](std::string_view bytes) {
    body.append(bytes);
    return true;
  });
  if (code != CURLE_OK) return make_status(StatusCode::kUnavailable, "{}: {}", url_, curl_easy_strerror(code));
  if (transfer.status() != 200) return invalid_argument("{}: {}", url_, server_message(body));
  const Json json = Json::parse(body, nullptr, /*allow_exceptions=*/false);
  const Json* data = json.is_object() && json.contains("data") ? &json["data"] : nullptr;
  if (data == nullptr || !data->is_array() || data->empty() || !(*data)[0].is_object()) {
    return invalid_argument("{}/v1/models: not a list of models", url_);
  }
  return (*data)[0].value("id", std::string());
}

Result<ChatOutcome> ChatClient::chat(const std::vector<ChatTurn>& messages, const Options& options,
                                     const std::function<void(const ChatDelta&)>& on_delta,
                                     const std::atomic<bool>& interrupt) const {
  Json request{{"stream", true}, {"stream_options", {{"include_usage", true}}}, {"temperature", options.temperature}};
  if (options.max_tokens > 0) request["max_tokens"] = options.max_tokens;
  for (const ChatTurn& turn : messages) request["messages"].push_back({{"role", turn.role}, {"content", turn.content}});
  const std::string body = request.dump(-1, ' ', false, Json::error_handler_t::replace);

  Transfer transfer(url_ + "/v1/chat/completions", api_key_);
  curl_easy_setopt(transfer.handle(), CURLOPT_POSTFIELDS, body.c_str());
  curl_easy_setopt(transfer.handle(), CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(body.size()));
  // Looked at about once a second even when nothing arrives.
  curl_easy_setopt(transfer.handle(), CURLOPT_NOPROGRESS, 0L);
  curl_easy_setopt(transfer.handle(), CURLOPT_XFERINFODATA, const_cast<std::atomic<bool>*>(&interrupt));
  curl_easy_setopt(transfer.handle(), CURLOPT_XFERINFOFUNCTION,
                   +[](void* flag, curl_off_t, curl_off_t, curl_off_t, curl_off_t) -> int {
                     return static_cast<const std::atomic<bool>*>(flag)->load() ? 1 : 0;
                   });

  ChatOutcome outcome;
  SseReader reader;
  std::string error_text;
  const auto on_payload = [&](const std::string& payload) {
    const Json json = Json::parse(payload, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object()) return;
    if (json.contains("error")) error_text = server_message(payload);
    ChatDelta delta;
    read_chunk(json, delta, outcome);
    outcome.content += delta.content;
    if (!delta.reasoning.empty() || !delta.content.empty()) on_delta(delta);
  };
  const CURLcode code = transfer.run([&](std::string_view bytes) {
    if (transfer.status() != 200) {
      error_text.append(bytes);
    } else {
      reader.push(bytes, on_payload);
    }
    return !interrupt.load();
  });
  outcome.interrupted = interrupt.load();
  if (code != CURLE_OK && !outcome.interrupted) {
    return make_status(StatusCode::kUnavailable, "{}: {}", url_, curl_easy_strerror(code));
  }
  if (!error_text.empty()) return make_status(StatusCode::kUnavailable, "{}", server_message(error_text));
  return outcome;
}

}  // namespace fathom::serve
