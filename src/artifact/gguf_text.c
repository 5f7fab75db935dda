/* The tokenizer inside a GGUF file, written out as a tokenizer.json, so that src/text has one input (see gguf.h). NFC is stated as Hugging
 * Face has it; the pre-tokenizer's regex follows tokenizer.ggml.pre. */
#include "artifact/gguf.h"

#include "base/num.h"

#include <string.h>

#define RE_HEAD "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?"
#define RE_TAIL "[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+"
static const char re_marks[] = RE_HEAD "[\\\\p{L}\\\\p{M}]+|\\\\p{N}| ?[^\\\\s\\\\p{L}\\\\p{M}\\\\p{N}]+" RE_TAIL;
static const char re_plain[] = RE_HEAD "\\\\p{L}+|\\\\p{N}| ?[^\\\\s\\\\p{L}\\\\p{N}]+" RE_TAIL;

enum { TOKEN_NORMAL = 1, TOKEN_CONTROL = 3, TOKEN_USER = 4, TOKEN_UNUSED = 5 };

static void json_text(struct lk_buf *b, const char *s, uint64_t n)
{
    lk_buf_chr(b, '"');
    uint64_t from = 0;
    for (uint64_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)s[i];
        if (c >= 0x20 && c != '"' && c != '\\') continue;
        lk_buf_add(b, s + from, (size_t)(i - from));
        if (c < 0x20)
            lk_buf_fmt(b, "\\u%04x", c);
        else
            lk_buf_fmt(b, "\\%c", c);
        from = i + 1;
    }
    lk_buf_add(b, s + from, (size_t)(n - from));
    lk_buf_chr(b, '"');
}

static void added_tokens(const struct gguf_value *tokens, const struct gguf_value *types, struct lk_buf *b)
{
    const unsigned char *at = tokens->at;
    const char *comma = "";
    for (uint64_t i = 0; i < tokens->n; i++) {
        uint64_t len;
        const char *s = lk__gguf_string(&at, &len);
        uint32_t type = lk_get32(types->at + i * 4);
        if (type != TOKEN_CONTROL && type != TOKEN_USER) continue;
        lk_buf_fmt(b, "%s{\"id\":%llu,\"content\":", comma, (unsigned long long)i);
        json_text(b, s, len);
        lk_buf_fmt(b, ",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false,\"special\":%s}",
                   type == TOKEN_CONTROL ? "true" : "false");
        comma = ",";
    }
}

static void vocab(const struct gguf_value *tokens, const struct gguf_value *types, struct lk_buf *b)
{
    const unsigned char *at = tokens->at;
    const char *comma = "";
    for (uint64_t i = 0; i < tokens->n; i++) {
        uint64_t len;
        const char *s = lk__gguf_string(&at, &len);
        if (lk_get32(types->at + i * 4) != TOKEN_NORMAL) continue;
        lk_buf_str(b, comma);
        json_text(b, s, len);
        lk_buf_fmt(b, ":%llu", (unsigned long long)i);
        comma = ",";
    }
}

int lk__gguf_tokenizer(const struct gguf_file *g, struct lk_buf *out, struct lk_err *e)
{
    const struct gguf_value *tokens = lk__gguf_array(g, "tokenizer.ggml.tokens", GGUF_STRING, e);
    const struct gguf_value *types = tokens ? lk__gguf_array(g, "tokenizer.ggml.token_type", GGUF_I32, e) : NULL;
    const struct gguf_value *merges = types ? lk__gguf_array(g, "tokenizer.ggml.merges", GGUF_STRING, e) : NULL;
    if (!merges) return LK_EINPUT;
    if (types->n != tokens->n)
        return lk_fail(e, LK_EINPUT, "%s: key tokenizer.ggml.token_type: expected %llu elements (as tokens), found %llu", g->file,
                       (unsigned long long)tokens->n, (unsigned long long)types->n);
    const struct gguf_value *pre = lk__gguf_find(g, "tokenizer.ggml.pre");
    int marks = pre && pre->type == GGUF_STRING && pre->n == 6 && !memcmp(pre->at, "qwen35", 6);
    lk_buf_str(out, "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":[");
    added_tokens(tokens, types, out);
    lk_buf_fmt(out,
               "],\"normalizer\":{\"type\":\"NFC\"},\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\","
               "\"pattern\":{\"Regex\":\"%s\"},\"behavior\":\"Isolated\",\"invert\":false},{\"type\":\"ByteLevel\",\"add_prefix_space\":"
               "false,\"trim_offsets\":false,\"use_regex\":false}]},",
               marks ? re_marks : re_plain);
    lk_buf_str(out, "\"post_processor\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":false,\"use_regex\":false},"
                    "\"decoder\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":false,\"use_regex\":false},"
                    "\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,\"continuing_subword_prefix\":\"\","
                    "\"end_of_word_suffix\":\"\",\"fuse_unk\":false,\"byte_fallback\":false,\"ignore_merges\":false,\"vocab\":{");
    vocab(tokens, types, out);
    lk_buf_str(out, "},\"merges\":[");
    const unsigned char *at = merges->at;
    for (uint64_t i = 0; i < merges->n; i++) {
        uint64_t len;
        const char *s = lk__gguf_string(&at, &len);
        if (i) lk_buf_chr(out, ',');
        json_text(out, s, len);
    }
    lk_buf_str(out, "]}}");
    return out->failed ? lk_fail(e, LK_ENOMEM, "%s: no memory for the tokenizer", g->file) : 0;
}
