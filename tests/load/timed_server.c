// A server that streams answers in vLLM's event format at times that are known, for testing what measures such servers.
// One thread, loopback only. README.md beside this file says how to drive it and what its log holds.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { MAX_CONNECTIONS = 65536, MAX_POLLED = 1024, MAX_BURST = 512, READ_STEP = 16384, OUT_BYTES = 65536 };
static const int64_t MS = 1000000, SECOND = 1000000000;
// Between the two halves of an event that is cut on purpose: long enough to arrive in two reads.
static const int64_t CUT_NS = 3000000;
static const char *const WORDS[] = {" the", "ing", " of", " a", "tion", " to", " in", "er"};

// How one answer is given. The server has one as its default; a request may say otherwise in its body.
typedef struct {
  int64_t ttft_ns, itl_ns;
  int tokens;     // of the answer
  int group;      // tokens in one event
  int empty;      // events without text before the first token, sent at once; in a chat the first has the role
  int after;      // events before a fault
  char cut[16];   // "utf8" or "json": where events are cut into two writes; empty: nowhere
  char fault[16]; // see README.md
} Manner;

typedef struct Connection {
  int fd;
  char *in;
  int in_length, in_capacity;
  bool streaming, head_sent, chat;
  int heap_place;             // -1: not in the heap
  struct Connection *waits;   // next in the queue for a slot
  bool queued;
  int64_t due, received, *event_times;
  int events, tokens_sent;
  uint64_t id;
  char name[64];              // the client's X-Request-Id
  Manner manner;
  char rest[2048];            // second half of an event that was cut
  int rest_length;
} Connection;

static Connection *connections[MAX_CONNECTIONS];
static Connection *heap[MAX_CONNECTIONS];
static int heap_size, epoll_fd;
static Connection *queue_head, *queue_tail;
static int waiting, slots = MAX_CONNECTIONS;
static Manner standard = {.ttft_ns = 100000000, .itl_ns = 20000000, .tokens = 64, .group = 1};
static FILE *log_file;
static uint64_t last_id;
static int64_t started;

static struct {
  uint64_t requests, tokens, streaming, max_streaming, sends, late_1ms;
  int64_t late_sum, late_max;
} stats;

static int64_t now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * SECOND + t.tv_nsec;
}

// The heap of streams by the time at which they send next.

static void heap_swap(int a, int b) {
  Connection *moved = heap[a];
  heap[a] = heap[b];
  heap[b] = moved;
  heap[a]->heap_place = a;
  heap[b]->heap_place = b;
}

static void heap_up(int place) {
  while (place) {
    int parent = (place - 1) / 2;
    if (heap[parent]->due <= heap[place]->due) break;
    heap_swap(parent, place);
    place = parent;
  }
}

static void heap_down(int place) {
  for (;;) {
    int left = 2 * place + 1, right = left + 1, least = place;
    if (left < heap_size && heap[left]->due < heap[least]->due) least = left;
    if (right < heap_size && heap[right]->due < heap[least]->due) least = right;
    if (least == place) break;
    heap_swap(place, least);
    place = least;
  }
}

static void schedule(Connection *c, int64_t due) {
  c->due = due;
  c->heap_place = heap_size;
  heap[heap_size++] = c;
  heap_up(c->heap_place);
}

static void unschedule(Connection *c) {
  int place = c->heap_place;
  if (place < 0) return;
  c->heap_place = -1;
  heap_size--;
  if (place == heap_size) return;
  heap[place] = heap[heap_size];
  heap[place]->heap_place = place;
  heap_up(place);
  heap_down(heap[place]->heap_place);
}

// The end of a stream, and of a connection.

static void begin_stream(Connection *c);

static void write_log(Connection *c, const char *outcome) {
  if (!log_file) return;
  fprintf(log_file, "%lu,%s,%ld,%s,%d,", c->id, c->name, c->received, outcome, c->tokens_sent);
  for (int i = 0; i < c->events; i++) fprintf(log_file, i ? ";%ld" : "%ld", c->event_times[i]);
  fputc('\n', log_file);
}

static void leave_queue(Connection *c) {
  Connection *before = NULL;
  for (Connection *one = queue_head; one; before = one, one = one->waits) {
    if (one != c) continue;
    if (before) before->waits = c->waits; else queue_head = c->waits;
    if (queue_tail == c) queue_tail = before;
    waiting--;
    break;
  }
  c->queued = false;
}

static void end_stream(Connection *c, const char *outcome) {
  if (!c->streaming) return;
  c->streaming = false;
  unschedule(c);
  write_log(c, outcome);
  free(c->event_times);
  c->event_times = NULL;
  if (c->queued) {
    leave_queue(c);
    return;
  }
  stats.streaming--;
  if (queue_head && (int)stats.streaming < slots) {
    Connection *next = queue_head;
    leave_queue(next);
    begin_stream(next);
  }
}

static void close_connection(Connection *c, bool reset) {
  end_stream(c, "aborted");
  if (reset) {
    struct linger at_once = {1, 0};
    setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  }
  epoll_ctl(epoll_fd, EPOLL_CTL_DEL, c->fd, NULL);
  close(c->fd);
  connections[c->fd] = NULL;
  free(c->in);
  free(c);
}

// Writes all of it; false when the client is gone, or has read nothing for a second.
static bool write_all(Connection *c, const char *data, int length) {
  int64_t patience = 0;
  for (int done = 0; done < length;) {
    ssize_t n = write(c->fd, data + done, length - done);
    if (n >= 0) {
      done += n;
    } else if (errno == EAGAIN) {
      if (!patience) patience = now() + SECOND;
      if (now() > patience) return false;
      usleep(50);
    } else if (errno != EINTR) {
      return false;
    }
  }
  return true;
}

// Text of events.

static int chunk(char *out, const char *data, int length) {
  int n = sprintf(out, "%x\r\n", length);
  memcpy(out + n, data, length);
  memcpy(out + n + length, "\r\n", 2);
  return n + length + 2;
}

static bool faulty(Connection *c, const char *fault) { return !strcmp(c->manner.fault, fault); }

static int piece(Connection *c, char *out, const char *data, int length) {
  if (!faulty(c, "until_close")) return chunk(out, data, length);
  memcpy(out, data, length);
  return length;
}

static int content_event(Connection *c, char *out, const char *text, bool last) {
  const char *finish = last ? "\"length\"" : "null";
  if (c->chat)
    return sprintf(out, "data: {\"id\":\"chatcmpl-%016lx\",\"object\":\"chat.completion.chunk\",\"created\":1795982416,"
                   "\"model\":\"tiny\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"%s\"},\"logprobs\":null,"
                   "\"finish_reason\":%s,\"token_ids\":null}]}\n\n", c->id, text, finish);
  return sprintf(out, "data: {\"id\":\"cmpl-%016lx\",\"object\":\"text_completion\",\"created\":1795982416,"
                 "\"model\":\"tiny\",\"choices\":[{\"index\":0,\"text\":\"%s\",\"logprobs\":null,\"finish_reason\":%s,"
                 "\"stop_reason\":null,\"prompt_token_ids\":null,\"token_ids\":null}]}\n\n", c->id, text, finish);
}

static int role_event(Connection *c, char *out) {
  return sprintf(out, "data: {\"id\":\"chatcmpl-%016lx\",\"object\":\"chat.completion.chunk\",\"created\":1795982416,"
                 "\"model\":\"tiny\",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},"
                 "\"logprobs\":null,\"finish_reason\":null}],\"prompt_token_ids\":null}\n\n", c->id);
}

static int last_events(Connection *c, char *out) {
  char text[1024];
  int n = 0, tokens = c->tokens_sent;
  if (!faulty(c, "no_usage")) {
    int length = sprintf(text, "data: {\"id\":\"%s-%016lx\",\"object\":\"%s\",\"created\":1795982416,\"model\":\"tiny\","
                         "\"choices\":[],\"usage\":{\"prompt_tokens\":16,\"total_tokens\":%d,\"completion_tokens\":%d}}"
                         "\n\n", c->chat ? "chatcmpl" : "cmpl", c->id,
                         c->chat ? "chat.completion.chunk" : "text_completion", 16 + tokens, tokens);
    n += piece(c, out + n, text, length);
  }
  if (!faulty(c, "no_done")) n += piece(c, out + n, "data: [DONE]\n\n", 14);
  if (!faulty(c, "until_close")) n += sprintf(out + n, "0\r\n\r\n");
  return n;
}

static int stream_head(Connection *c, char *out) {
  c->head_sent = true;
  bool endless = faulty(c, "until_close");
  return sprintf(out, "HTTP/1.1 200 OK\r\nserver: timed\r\ncontent-type: text/event-stream; charset=utf-8\r\n%s%s\r\n",
                 endless ? "" : "transfer-encoding: chunked\r\n",
                 endless || faulty(c, "close") ? "connection: close\r\n" : "");
}

// Answers that are no streams.

static void answer(Connection *c, int status, const char *type, const char *body) {
  char out[OUT_BYTES];
  int n = snprintf(out, sizeof out, "HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\n\r\n%s", status,
                   status == 200 ? "OK" : "Error", type, strlen(body), body);
  write_all(c, out, n);
}

static void answer_stats(Connection *c, bool reset) {
  char body[1024];
  struct rusage used;
  getrusage(RUSAGE_SELF, &used);
  double cpu_s = used.ru_utime.tv_sec + used.ru_stime.tv_sec + (used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
  sprintf(body, "{\"requests\":%lu,\"tokens\":%lu,\"open\":%lu,\"max_open\":%lu,\"cpu_s\":%.4f,\"late_max_ms\":%.3f,"
          "\"late_mean_ms\":%.4f,\"late_gt1ms\":%lu,\"sends\":%lu,\"up_s\":%.3f}\n", stats.requests, stats.tokens,
          stats.streaming, stats.max_streaming, cpu_s, stats.late_max / 1e6,
          stats.sends ? stats.late_sum / 1e6 / stats.sends : 0.0, stats.late_1ms, stats.sends, (now() - started) / 1e9);
  // First the log: who has the answer may look into it at once.
  if (log_file) fflush(log_file);
  answer(c, 200, "application/json", body);
  if (!reset) return;
  uint64_t streaming = stats.streaming;
  memset(&stats, 0, sizeof stats);
  stats.streaming = stats.max_streaming = streaming;
}

static void answer_metrics(Connection *c) {
  char body[512];
  sprintf(body, "# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{model_name=\"tiny\",engine=\"0\"} %lu\n"
          "# TYPE vllm:num_requests_waiting gauge\nvllm:num_requests_waiting{model_name=\"tiny\",engine=\"0\"} %d\n",
          stats.streaming, waiting);
  answer(c, 200, "text/plain; version=0.0.4", body);
}

// What a request asks for. The bodies come from tests, so a search for a name will do for parsing.

static long number(const char *text, const char *name, long otherwise) {
  const char *at = strstr(text, name);
  if (!at) return otherwise;
  at += strlen(name);
  while (*at == ' ' || *at == ':' || *at == '"' || *at == '=') at++;
  return *at < '0' || *at > '9' ? otherwise : atol(at);
}

static void word(const char *text, const char *name, char *out, size_t size) {
  const char *at = strstr(text, name);
  if (!at) return;
  at += strlen(name);
  while (*at == ' ' || *at == ':' || *at == '"' || *at == '=') at++;
  size_t n = 0;
  while (n + 1 < size && at[n] && !strchr("\"&,} \r\n", at[n])) n++;
  memcpy(out, at, n);
  out[n] = 0;
}

static void read_manner(Manner *m, const char *text, const char *quote) {
  char name[32];
#define NAMED(what) (snprintf(name, sizeof name, "%s%s%s", quote, what, quote), name)
  m->ttft_ns = number(text, NAMED("ttft_us"), m->ttft_ns / 1000) * 1000;
  m->itl_ns = number(text, NAMED("itl_us"), m->itl_ns / 1000) * 1000;
  m->group = number(text, NAMED("group"), m->group);
  m->empty = number(text, NAMED("empty"), m->empty);
  m->after = number(text, NAMED("after"), m->after);
  word(text, NAMED("cut"), m->cut, sizeof m->cut);
  word(text, NAMED("fault"), m->fault, sizeof m->fault);
}

static void set(Connection *c, const char *line) {
  read_manner(&standard, line, "");
  standard.tokens = number(line, "tokens", standard.tokens);
  slots = number(line, "slots", slots);
  answer(c, 200, "application/json", "{}");
}

static bool get(Connection *c, const char *head) {
  if (!strncmp(head, "GET /stats_reset", 16)) answer_stats(c, true);
  else if (!strncmp(head, "GET /stats", 10)) answer_stats(c, false);
  else if (!strncmp(head, "GET /set?", 9)) set(c, head);
  else if (!strncmp(head, "GET /metrics", 12)) answer_metrics(c);
  else if (!strncmp(head, "GET /health", 11)) answer(c, 200, "text/plain", "");
  else if (!strncmp(head, "GET /version", 12)) answer(c, 200, "application/json", "{\"version\":\"0.32.0\"}");
  else if (!strncmp(head, "GET /v1/models", 14))
    answer(c, 200, "application/json", "{\"object\":\"list\",\"data\":[{\"id\":\"tiny\",\"object\":\"model\","
           "\"created\":1795982416,\"owned_by\":\"timed\",\"root\":\"/var\",\"parent\":null,\"max_model_len\":2048}]}");
  else return false;
  return true;
}

// Streams.

static void begin_stream(Connection *c) {
  char out[OUT_BYTES], text[1024];
  int n = 0;
  stats.streaming++;
  if (stats.streaming > stats.max_streaming) stats.max_streaming = stats.streaming;
  if (!faulty(c, "slow_head") && !faulty(c, "silent") && !faulty(c, "reset_head") && !faulty(c, "garbage"))
    n += stream_head(c, out);
  if (c->head_sent)
    for (int i = 0; i < c->manner.empty; i++)
      n += piece(c, out + n, text, c->chat && !i ? role_event(c, text) : content_event(c, text, "", false));
  if (n && !write_all(c, out, n)) {
    close_connection(c, false);
    return;
  }
  if (!faulty(c, "silent")) schedule(c, now() + c->manner.ttft_ns);
}

static void take_post(Connection *c, const char *head, const char *body) {
  c->manner = standard;
  read_manner(&c->manner, body, "\"");
  c->manner.tokens = number(body, "\"max_completion_tokens\"", number(body, "\"max_tokens\"", standard.tokens));
  if (c->manner.tokens < 1) c->manner.tokens = 1;
  if (c->manner.group < 1) c->manner.group = 1;
  stats.requests++;
  if (!strncmp(c->manner.fault, "http_", 5)) {
    answer(c, atoi(c->manner.fault + 5), "application/json", "{\"error\":{\"message\":\"as told\"}}");
    return;
  }
  c->received = now();
  c->id = ++last_id;
  c->name[0] = 0;
  const char *name = strcasestr(head, "x-request-id:");
  if (name) word(name, ":", c->name, sizeof c->name);
  c->events = c->tokens_sent = c->rest_length = 0;
  c->head_sent = false;
  c->event_times = malloc(sizeof(int64_t) * (c->manner.tokens + 1));
  c->streaming = true;
  if ((int)stats.streaming < slots) {
    begin_stream(c);
    return;
  }
  c->queued = true;
  c->waits = NULL;
  if (queue_tail) queue_tail->waits = c; else queue_head = c;
  queue_tail = c;
  waiting++;
}

static void take_request(Connection *c, const char *head, const char *body) {
  c->chat = !strncmp(head, "POST /v1/chat/completions", 25);
  if (get(c, head)) return;
  if (!c->chat && strncmp(head, "POST /v1/completions", 20)) answer(c, 404, "application/json", "{\"detail\":\"none\"}");
  else if (!strstr(body, "\"stream\": true") && !strstr(body, "\"stream\":true"))
    answer(c, 200, "application/json", "{\"id\":\"x\",\"object\":\"text_completion\",\"choices\":[{\"index\":0,"
           "\"text\":\"ok\",\"message\":{\"role\":\"assistant\",\"content\":\"ok\"},\"finish_reason\":\"length\"}],"
           "\"usage\":{\"prompt_tokens\":16,\"completion_tokens\":1,\"total_tokens\":17}}");
  else take_post(c, head, body);
}

static void read_requests(Connection *c) {
  int fd = c->fd;
  for (;;) {
    if (c->in_capacity - c->in_length < READ_STEP) {
      c->in_capacity = c->in_capacity * 2 + 2 * READ_STEP;
      c->in = realloc(c->in, c->in_capacity + 1);
    }
    ssize_t n = read(fd, c->in + c->in_length, c->in_capacity - c->in_length);
    if (n < 0 && errno == EAGAIN) break;
    if (n <= 0) {
      close_connection(c, false);
      return;
    }
    c->in_length += n;
  }
  while (connections[fd] == c && c->in_length && !c->streaming) {
    c->in[c->in_length] = 0;
    char *end = strstr(c->in, "\r\n\r\n");
    if (!end) return;
    int head_length = end - c->in + 4;
    char *length = strcasestr(c->in, "content-length:");
    int body_length = length && length < end ? atoi(length + 15) : 0;
    if (c->in_length < head_length + body_length) return;
    char *head = strndup(c->in, head_length), *body = strndup(c->in + head_length, body_length);
    c->in_length -= head_length + body_length;
    memmove(c->in, c->in + head_length + body_length, c->in_length);
    take_request(c, head, body);
    free(head);
    free(body);
  }
}

static void finish_stream(Connection *c) {
  bool closes = faulty(c, "close") || faulty(c, "until_close");
  end_stream(c, "done");
  if (closes) close_connection(c, false);
  else if (c->in_length) read_requests(c);
}

// Faults that come in place of an event. True when the stream is over or stands still.
static bool fail(Connection *c) {
  char text[256], out[512];
  if (faulty(c, "reset_head")) {
    end_stream(c, "reset");
    close_connection(c, true);
    return true;
  }
  if (faulty(c, "garbage")) {
    write_all(c, "SSH-2.0-this is no HTTP\r\n\r\n", 27);
    end_stream(c, "garbage");
    close_connection(c, false);
    return true;
  }
  if (c->events < c->manner.after) return false;
  if (faulty(c, "reset") || faulty(c, "eof")) {
    bool reset = faulty(c, "reset");
    end_stream(c, c->manner.fault);
    close_connection(c, reset);
    return true;
  }
  if (faulty(c, "stall")) {
    unschedule(c);
    return true;
  }
  if (faulty(c, "bad_json") || faulty(c, "error_event")) {
    const char *event = faulty(c, "bad_json") ? "data: {\"choices\":[{\n\n" :
        "data: {\"error\":{\"message\":\"engine died\",\"type\":\"InternalServerError\",\"code\":500}}\n\n";
    int n = chunk(out, event, sprintf(text, "%s", event));
    n += chunk(out + n, "data: [DONE]\n\n", 14);
    n += sprintf(out + n, "0\r\n\r\n");
    write_all(c, out, n);
    end_stream(c, c->manner.fault);
    return true;
  }
  return false;
}

// Where an event is cut: inside the two bytes of a character, or in the middle of the JSON text.
static int cut_place(Connection *c, const char *out, int length) {
  if (!strcmp(c->manner.cut, "utf8")) {
    const char *at = memchr(out, 0xc3, length);
    return at ? at - out + 1 : 0;
  }
  return !strcmp(c->manner.cut, "json") ? length * 3 / 4 : 0;
}

static void event_sent(Connection *c, int64_t at) {
  int left = c->manner.tokens - c->tokens_sent, tokens = left < c->manner.group ? left : c->manner.group;
  c->tokens_sent += tokens;
  stats.tokens += tokens;
  c->event_times[c->events++] = at;
}

static void continue_stream(Connection *c, int64_t planned) {
  if (c->tokens_sent >= c->manner.tokens) finish_stream(c);
  else schedule(c, planned + c->manner.itl_ns);
}

// The second half of an event that was cut. Only now has the client an event.
static void send_rest(Connection *c) {
  unschedule(c);
  event_sent(c, now());
  char out[OUT_BYTES];
  int n = c->rest_length;
  memcpy(out, c->rest, n);
  c->rest_length = 0;
  if (c->tokens_sent >= c->manner.tokens) n += last_events(c, out + n);
  if (!write_all(c, out, n)) close_connection(c, false);
  else continue_stream(c, c->due - CUT_NS);
}

static void send_event(Connection *c) {
  char out[OUT_BYTES], text[1024], words[256] = "";
  int n = 0, left = c->manner.tokens - c->tokens_sent, tokens = left < c->manner.group ? left : c->manner.group;
  for (int i = 0; i < tokens && i < 16; i++) strcat(words, c->manner.cut[0] ? " \xc3\xa9" : WORDS[(c->tokens_sent + i) & 7]);
  if (!c->head_sent) n += stream_head(c, out);
  if (c->chat && !c->events && !c->manner.empty) n += piece(c, out + n, text, role_event(c, text));
  int length = content_event(c, text, words, left <= tokens), cut = cut_place(c, text, length);
  unschedule(c);
  if (cut) {
    n += piece(c, out + n, text, cut);
    c->rest_length = piece(c, c->rest, text + cut, length - cut);
    if (write_all(c, out, n)) schedule(c, c->due + CUT_NS);
    else close_connection(c, false);
    return;
  }
  n += piece(c, out + n, text, length);
  event_sent(c, now());
  if (c->tokens_sent >= c->manner.tokens) n += last_events(c, out + n);
  if (!write_all(c, out, n)) close_connection(c, false);
  else continue_stream(c, c->due);
}

static void fire(Connection *c, int64_t at) {
  int64_t late = at - c->due;
  stats.sends++;
  stats.late_sum += late;
  if (late > MS) stats.late_1ms++;
  if (late > stats.late_max) stats.late_max = late;
  if (c->rest_length) send_rest(c);
  else if (!fail(c)) send_event(c);
}

// The loop.

static void accept_all(int listener) {
  int on = 1, fd;
  while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
    if (fd >= MAX_CONNECTIONS) {
      close(fd);
      continue;
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    Connection *c = calloc(1, sizeof *c);
    c->fd = fd;
    c->heap_place = -1;
    connections[fd] = c;
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
    epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event);
  }
}

static void send_due(void) {
  int64_t at = now();
  for (int sent = 0; heap_size && heap[0]->due <= at && sent < MAX_BURST;) {
    fire(heap[0], at);
    if ((++sent & 15) == 0) at = now();
  }
}

static void poll_sockets(int listener) {
  struct epoll_event events[MAX_POLLED];
  struct timespec wait = {1, 0};
  if (heap_size) {
    int64_t left = heap[0]->due - now();
    if (left < 0) left = 0;
    if (left < SECOND) wait = (struct timespec){0, left};
  }
  int count = epoll_pwait2(epoll_fd, events, MAX_POLLED, &wait, NULL);
  for (int i = 0; i < count; i++) {
    int fd = events[i].data.fd;
    if (fd == listener) accept_all(listener);
    else if (connections[fd]) read_requests(connections[fd]);
  }
  if (log_file && count == 0) fflush(log_file);
}

static int listen_on(int port) {
  struct sockaddr_in address = {
      .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t size = sizeof address;
  int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), on = 1;
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (bind(listener, (void *)&address, sizeof address) || listen(listener, 4096)) {
    perror("timed_server: cannot listen");
    exit(1);
  }
  getsockname(listener, (void *)&address, &size);
  printf("%d\n", ntohs(address.sin_port));
  fflush(stdout);
  return listener;
}

int main(int count, char **words) {
  int port = 0;
  int64_t max_seconds = 3600;
  for (int i = 1; i + 1 < count; i += 2) {
    const char *name = words[i], *value = words[i + 1];
    if (!strcmp(name, "--port")) port = atoi(value);
    else if (!strcmp(name, "--ttft-us")) standard.ttft_ns = atol(value) * 1000;
    else if (!strcmp(name, "--itl-us")) standard.itl_ns = atol(value) * 1000;
    else if (!strcmp(name, "--tokens")) standard.tokens = atoi(value);
    else if (!strcmp(name, "--slots")) slots = atoi(value);
    else if (!strcmp(name, "--max-seconds")) max_seconds = atol(value);
    else if (!strcmp(name, "--log")) log_file = fopen(value, "w");
    else {
      fprintf(stderr, "timed_server: unknown option %s\n", name);
      return 2;
    }
  }
  signal(SIGPIPE, SIG_IGN);
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  struct rlimit files;
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
  started = now();
  int listener = listen_on(port);
  epoll_fd = epoll_create1(0);
  struct epoll_event event = {.events = EPOLLIN, .data.fd = listener};
  epoll_ctl(epoll_fd, EPOLL_CTL_ADD, listener, &event);
  while (now() - started < max_seconds * SECOND) {
    send_due();
    poll_sockets(listener);
  }
  return 0;
}
