/* The pre-tokenizer's regex: written for Oniguruma, run by PCRE2. The two agree on these patterns
 * but for `\s`: with UCP, PCRE2 counts U+180E as white space and Oniguruma does not. So `\s` and
 * `\S` are rewritten to the White_Space property spelled out, inside and outside of classes; all
 * else passes as it stands. */
#include "text/tokenizer_int.h"

#include <string.h>

#define WHITE                                                                                      \
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}"             \
    "\\x{202f}\\x{205f}\\x{3000}"

static int regex_translate(const char *p, size_t n, struct lk_buf *out, struct lk_err *e)
{
    int in_class = 0;
    for (size_t i = 0; i < n; i++) {
        if (p[i] == '\\' && i + 1 < n) {
            i++;
            if (p[i] == 's')
                lk_buf_str(out, in_class ? WHITE : "[" WHITE "]");
            else if (p[i] == 'S' && in_class)
                return lk_fail(e, LK_EINPUT,
                               "pre_tokenizer: regex: \\S inside a class is not supported");
            else if (p[i] == 'S')
                lk_buf_str(out, "[^" WHITE "]");
            else
                lk_buf_add(out, p + i - 1, 2);
            continue;
        }
        if (p[i] == '[')
            in_class = 1;
        else if (p[i] == ']')
            in_class = 0;
        lk_buf_chr(out, p[i]);
    }
    return out->failed ? lk_fail(e, LK_ENOMEM, "out of memory") : 0;
}

int lk__regex_compile(pcre2_code **out, const char *pattern, size_t len, struct lk_err *e)
{
    struct lk_buf b = {0};
    int code = 0, rc = regex_translate(pattern, len, &b, e);
    PCRE2_SIZE at = 0;
    if (!rc) {
        *out = pcre2_compile((PCRE2_SPTR)(b.data ? b.data : ""), b.len,
                             PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &code, &at, NULL);
        if (!*out) {
            PCRE2_UCHAR why[160] = "";
            pcre2_get_error_message(code, why, sizeof why);
            rc = lk_fail(e, LK_EINPUT, "pre_tokenizer: regex: %s", (const char *)why);
        } else {
            pcre2_jit_compile(
                *out,
                PCRE2_JIT_COMPLETE); /* no JIT on this machine: the interpreter, same result */
        }
    }
    lk_buf_free(&b);
    return rc;
}
