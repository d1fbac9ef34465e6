// What compiled S-expressions need: values, a tape for reverse mode, and the operators (float32, one thread).
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

struct Tensor {
    std::vector<int64_t> sizes;
    std::vector<float> own;
    float *data = nullptr;
    std::vector<float> grad;  // empty: none yet
    bool wants = false;       // whether its gradient is asked for
    bool truth = false;       // whether it holds truths (the result of a comparison)
    int64_t count() const { int64_t n = 1; for (auto s : sizes) n *= s; return n; }
    float *gradient() { if (grad.empty()) grad.assign(count(), 0.f); return grad.data(); }
};
using T = std::shared_ptr<Tensor>;
struct Object;

struct Value {
    enum Kind { None, Bool, Int, Float, Ten, Obj, List } kind = None;
    double number = 0;
    T tensor;
    std::shared_ptr<Object> object;
    std::shared_ptr<std::vector<Value>> items;
    Value() {}
    Value(bool b) : kind(Bool), number(b) {}
    Value(int64_t n) : kind(Int), number(double(n)) {}
    Value(double x) : kind(Float), number(x) {}
    Value(T t) : kind(Ten), tensor(t) {}
    explicit operator bool() const {
        switch (kind) {
            case None: return false;
            case Ten: if (tensor->count() != 1) throw std::runtime_error("the truth of several values"); return tensor->data[0] != 0;
            case List: return !items->empty();
            case Obj: return true;
            default: return number != 0;
        }
    }
};
struct Object { std::vector<std::pair<int, Value>> fields; };
using Values = std::vector<Value>;

[[noreturn]] void fail(const char *what) { throw std::runtime_error(what); }
std::vector<std::function<void()>> tape;

T made(std::vector<int64_t> sizes, bool wants) {
    auto t = std::make_shared<Tensor>();
    t->sizes = std::move(sizes);
    t->own.resize(t->count());
    t->data = t->own.data();
    t->wants = wants;
    return t;
}
const T &ten(const Value &v) { if (v.kind != Value::Ten) fail("a tensor is expected"); return v.tensor; }
bool is_number(const Value &v) { return v.kind == Value::Bool || v.kind == Value::Int || v.kind == Value::Float; }
Value number(double x, bool whole) { return whole ? Value(int64_t(x)) : Value(x); }

// ---- elementwise: two tensors of one shape, or a tensor and one number ----

template <class F, class DA, class DB>
Value binary(const Value &a, const Value &b, F f, DA da, DB db) {
    if (is_number(a) && is_number(b)) return number(f(a.number, b.number), a.kind != Value::Float && b.kind != Value::Float);
    T x = a.kind == Value::Ten ? a.tensor : nullptr, y = b.kind == Value::Ten ? b.tensor : nullptr;
    if (!x && !y) fail("numbers or tensors are expected");
    bool sx = !x || x->count() == 1, sy = !y || y->count() == 1;
    if (!sx && !sy && x->sizes != y->sizes) fail("tensors of different sizes");
    const auto &like = (x && (!sx || !y || (sy && x->sizes.size() >= y->sizes.size()))) ? x : y;
    T out = made(like->sizes, (x && x->wants) || (y && y->wants));
    const int64_t n = out->count();
    const float p = x ? x->data[0] : float(a.number), q = y ? y->data[0] : float(b.number);
    for (int64_t i = 0; i < n; i++) out->data[i] = float(f(sx ? p : x->data[i], sy ? q : y->data[i]));
    if (out->wants) {
        Tensor *o = out.get();
        tape.push_back([=, keep = out]() {
            if (o->grad.empty()) return;
            if (x && x->wants) { float *g = x->gradient(); for (int64_t i = 0; i < n; i++) g[sx ? 0 : i] += o->grad[i] * float(da(sx ? p : x->data[i], sy ? q : y->data[i])); }
            if (y && y->wants) { float *g = y->gradient(); for (int64_t i = 0; i < n; i++) g[sy ? 0 : i] += o->grad[i] * float(db(sx ? p : x->data[i], sy ? q : y->data[i])); }
        });
    }
    return out;
}
Value op_add(const Value &a, const Value &b) { return binary(a, b, [](auto x, auto y) { return x + y; }, [](auto, auto) { return 1.f; }, [](auto, auto) { return 1.f; }); }
Value op_sub(const Value &a, const Value &b) { return binary(a, b, [](auto x, auto y) { return x - y; }, [](auto, auto) { return 1.f; }, [](auto, auto) { return -1.f; }); }
Value op_mul(const Value &a, const Value &b) { return binary(a, b, [](auto x, auto y) { return x * y; }, [](auto, auto y) { return y; }, [](auto x, auto) { return x; }); }
Value op_div(const Value &a, const Value &b) {
    if (is_number(a) && is_number(b)) { if (b.number == 0) fail("division by zero"); return Value(a.number / b.number); }
    return binary(a, b, [](auto x, auto y) { return x / y; }, [](auto, auto y) { return 1 / y; }, [](auto x, auto y) { return -x / (y * y); });
}
Value whole(const Value &a, const Value &b, bool rest) {
    if (!is_number(a) || !is_number(b)) fail("numbers are expected");
    if (b.number == 0) fail("division by zero");
    double q = std::floor(a.number / b.number);
    return number(rest ? a.number - q * b.number : q, a.kind != Value::Float && b.kind != Value::Float);
}
Value op_floordiv(const Value &a, const Value &b) { return whole(a, b, false); }
Value op_mod(const Value &a, const Value &b) { return whole(a, b, true); }

template <class F>
Value compared(const Value &a, const Value &b, F f) {
    if (is_number(a) && is_number(b)) return Value(bool(f(a.number, b.number)));
    T x = a.kind == Value::Ten ? a.tensor : nullptr, y = b.kind == Value::Ten ? b.tensor : nullptr;
    if (!x && !y) fail("numbers or tensors are expected");
    if ((x && x->count() != 1) || (y && y->count() != 1)) fail("comparisons of several values");
    T out = made({}, false);
    out->truth = true;
    out->data[0] = f(x ? x->data[0] : float(a.number), y ? y->data[0] : float(b.number));
    return out;
}
Value op_eq(const Value &a, const Value &b) { return compared(a, b, [](auto x, auto y) { return x == y; }); }
Value op_ne(const Value &a, const Value &b) { return compared(a, b, [](auto x, auto y) { return x != y; }); }
Value op_lt(const Value &a, const Value &b) { return compared(a, b, [](auto x, auto y) { return x < y; }); }
Value op_le(const Value &a, const Value &b) { return compared(a, b, [](auto x, auto y) { return x <= y; }); }
Value op_gt(const Value &a, const Value &b) { return compared(a, b, [](auto x, auto y) { return x > y; }); }
Value op_ge(const Value &a, const Value &b) { return compared(a, b, [](auto x, auto y) { return x >= y; }); }
Value op_not(const Value &a) { return Value(!bool(a)); }
Value op_bool(const Value &a) { return Value(bool(a)); }
Value op_and(const Value &a, const Value &b) {
    if (a.kind == Value::Bool && b.kind == Value::Bool) return Value(a.number && b.number);
    return Value(int64_t(a.number) & int64_t(b.number));
}
Value op_or(const Value &a, const Value &b) {
    if (a.kind == Value::Bool && b.kind == Value::Bool) return Value(a.number || b.number);
    return Value(int64_t(a.number) | int64_t(b.number));
}
Value op_is(const Value &a, const Value &b) {
    if (a.kind == Value::None || b.kind == Value::None) return Value(a.kind == b.kind);
    if (a.kind == Value::Obj && b.kind == Value::Obj) return Value(a.object == b.object);
    fail("identity of values");
}
Value op_is_not(const Value &a, const Value &b) { return Value(!bool(op_is(a, b))); }

template <class F, class D>
Value unary(const Value &a, F f, D d) {  // the derivative is of the result
    if (is_number(a)) return number(f(a.number), a.kind != Value::Float);
    const T &x = ten(a);
    T out = made(x->sizes, x->wants);
    const int64_t n = out->count();
    for (int64_t i = 0; i < n; i++) out->data[i] = f(x->data[i]);
    if (out->wants) {
        Tensor *o = out.get();
        tape.push_back([=, keep = out]() {
            if (o->grad.empty()) return;
            float *g = x->gradient();
            for (int64_t i = 0; i < n; i++) g[i] += o->grad[i] * float(d(x->data[i], o->data[i]));
        });
    }
    return out;
}
Value op_neg(const Value &a) { return unary(a, [](auto x) { return -x; }, [](auto, auto) { return -1.f; }); }
Value op_tanh(const Value &a) { ten(a); return unary(a, [](auto x) { return std::tanh(x); }, [](auto, auto y) { return 1 - y * y; }); }
Value op_sigmoid(const Value &a) { ten(a); return unary(a, [](auto x) { return 1 / (1 + std::exp(-x)); }, [](auto, auto y) { return y * (1 - y); }); }
Value op_relu(const Value &a) { ten(a); return unary(a, [](auto x) { return x > 0 ? x : 0; }, [](auto x, auto) { return x > 0 ? 1.f : 0.f; }); }
Value op_exp(const Value &a) { ten(a); return unary(a, [](auto x) { return std::exp(x); }, [](auto, auto y) { return y; }); }
Value op_log(const Value &a) { ten(a); return unary(a, [](auto x) { return std::log(x); }, [](auto x, auto) { return 1 / x; }); }

// ---- vectors and matrices ----

Value op_sum(const Value &a) {
    const T &x = ten(a);
    T out = made({}, x->wants);
    double s = 0;
    for (int64_t i = 0; i < x->count(); i++) s += x->data[i];
    out->data[0] = float(s);
    if (out->wants) {
        Tensor *o = out.get();
        tape.push_back([=, keep = out]() {
            if (o->grad.empty()) return;
            float *g = x->gradient();
            for (int64_t i = 0; i < x->count(); i++) g[i] += o->grad[0];
        });
    }
    return out;
}

// x of (.., n), w of (m, n), b of (m) or none
Value op_linear(const Value &a, const Value &weight, const Value &bias) {
    const T &x = ten(a), &w = ten(weight);
    T b = bias.kind == Value::Ten ? bias.tensor : nullptr;
    if (w->sizes.size() != 2 || x->sizes.empty() || x->sizes.back() != w->sizes[1]) fail("sizes of linear");
    const int64_t m = w->sizes[0], n = w->sizes[1], rows = x->count() / n;
    auto sizes = x->sizes;
    sizes.back() = m;
    T out = made(sizes, x->wants || w->wants || (b && b->wants));
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < m; i++) {
            float s = b ? b->data[i] : 0.f;
            const float *row = w->data + i * n, *in = x->data + r * n;
            float sum = 0;
#pragma omp simd reduction(+ : sum)
            for (int64_t k = 0; k < n; k++) sum += row[k] * in[k];
            out->data[r * m + i] = s + sum;
        }
    if (out->wants) {
        Tensor *o = out.get();
        tape.push_back([=, keep = out]() {
            if (o->grad.empty()) return;
            float *gx = x->wants ? x->gradient() : nullptr, *gw = w->wants ? w->gradient() : nullptr, *gb = b && b->wants ? b->gradient() : nullptr;
            for (int64_t r = 0; r < rows; r++)
                for (int64_t i = 0; i < m; i++) {
                    const float g = o->grad[r * m + i];
                    if (gb) gb[i] += g;
                    const float *in = x->data + r * n, *row = w->data + i * n;
                    if (gw) {
                        float *to = gw + i * n;
#pragma omp simd
                        for (int64_t k = 0; k < n; k++) to[k] += g * in[k];
                    }
                    if (gx) {
                        float *to = gx + r * n;
#pragma omp simd
                        for (int64_t k = 0; k < n; k++) to[k] += g * row[k];
                    }
                }
        });
    }
    return out;
}
Value op_linear(const Value &a, const Value &weight) { return op_linear(a, weight, Value()); }

// A part of a tensor along its first dimension: its elements lie together.
Value part(const T &x, int64_t from, int64_t count, std::vector<int64_t> sizes) {
    T out = made(std::move(sizes), x->wants);
    std::copy(x->data + from, x->data + from + count, out->data);
    if (out->wants) {
        Tensor *o = out.get();
        tape.push_back([=, keep = out]() {
            if (o->grad.empty()) return;
            float *g = x->gradient() + from;
            for (int64_t i = 0; i < count; i++) g[i] += o->grad[i];
        });
    }
    return out;
}
Value op_item(const Value &a, const Value &key) {
    if (key.kind != Value::Int) fail("an index is expected");
    int64_t at = int64_t(key.number);
    const int64_t size = a.kind == Value::List ? int64_t(a.items->size()) : ten(a)->sizes.empty() ? 0 : ten(a)->sizes[0];
    if (at < 0) at += size;
    if (at < 0 || at >= size) fail("an index out of range");
    if (a.kind == Value::List) return (*a.items)[at];
    const T &x = ten(a);
    std::vector<int64_t> sizes(x->sizes.begin() + 1, x->sizes.end());
    const int64_t n = x->count() / size;
    return part(x, at * n, n, sizes);
}
Value op_select(const Value &a, const Value &dim, const Value &at) { if (dim.number != 0) fail("select along the first dimension only"); return op_item(a, at); }
Values op_chunk(const Value &a, const Value &count) {
    const T &x = ten(a);
    if (x->sizes.empty()) fail("chunks of a number");
    const int64_t size = x->sizes[0], each = (size + int64_t(count.number) - 1) / int64_t(count.number), row = size ? x->count() / size : 0;
    Values found;
    for (int64_t at = 0; at < size; at += each) {
        auto sizes = x->sizes;
        sizes[0] = std::min(each, size - at);
        found.push_back(part(x, at * row, sizes[0] * row, sizes));
    }
    return found;
}
Value op_cat(const Value &list) {
    if (list.kind != Value::List || list.items->empty()) fail("cat of nothing");
    int64_t rows = 0, total = 0;
    bool wants = false;
    for (auto &one : *list.items) { const T &x = ten(one); if (x->sizes.empty()) fail("cat of numbers"); rows += x->sizes[0]; total += x->count(); wants |= x->wants; }
    auto sizes = ten((*list.items)[0])->sizes;
    sizes[0] = rows;
    T out = made(sizes, wants);
    if (out->count() != total) fail("sizes of cat");
    int64_t at = 0;
    for (auto &one : *list.items) { const T &x = ten(one); std::copy(x->data, x->data + x->count(), out->data + at); at += x->count(); }
    if (wants) {
        Tensor *o = out.get();
        auto items = list.items;
        tape.push_back([=, keep = out]() {
            if (o->grad.empty()) return;
            int64_t from = 0;
            for (auto &one : *items) {
                const T &x = one.tensor;
                if (x->wants) { float *g = x->gradient(); for (int64_t i = 0; i < x->count(); i++) g[i] += o->grad[from + i]; }
                from += x->count();
            }
        });
    }
    return out;
}
Value filled(const Value &sizes, float with) {
    std::vector<int64_t> dims;
    if (sizes.kind == Value::List) for (auto &one : *sizes.items) dims.push_back(int64_t(one.number));
    else dims.push_back(int64_t(sizes.number));
    T out = made(dims, false);
    std::fill(out->own.begin(), out->own.end(), with);
    return out;
}
Value op_zeros(const Value &sizes) { return filled(sizes, 0.f); }
Value op_ones(const Value &sizes) { return filled(sizes, 1.f); }

// ---- objects and lists ----

Value op_get(const Value &a, int field) {
    if (a.kind != Value::Obj) fail("an attribute of None");
    for (auto &one : a.object->fields) if (one.first == field) return one.second;
    fail("there is no such attribute");
}
Value op_len(const Value &a) { return Value(int64_t(a.kind == Value::List ? int64_t(a.items->size()) : ten(a)->sizes.at(0))); }
Value op_size(const Value &a, int64_t dim) { return Value(ten(a)->sizes.at(dim)); }
Value op_int(const Value &a) { return Value(int64_t(a.kind == Value::Ten ? double(a.tensor->data[0]) : a.number)); }
Value op_float(const Value &a) { return Value(double(a.kind == Value::Ten ? double(a.tensor->data[0]) : a.number)); }
Value op_item_of(const Value &a) {
    const T &x = ten(a);
    if (x->count() != 1) fail("item of several values");
    return x->truth ? Value(x->data[0] != 0) : Value(double(x->data[0]));
}
Value list_of(Values items) { Value v; v.kind = Value::List; v.items = std::make_shared<Values>(std::move(items)); return v; }

Values result;
std::string message;
}  // namespace

// ---- what the host calls ----

extern "C" {
void *janus_tensor(float *data, int dims, const int64_t *sizes, int wants) {
    auto t = std::make_shared<Tensor>();
    t->sizes.assign(sizes, sizes + dims);
    t->data = data;
    t->wants = wants;
    return new Value(t);
}
void *janus_number(int kind, double x) { auto v = new Value(x); v->kind = Value::Kind(kind); return v; }
void *janus_object() { auto v = new Value(); v->kind = Value::Obj; v->object = std::make_shared<Object>(); return v; }
void janus_field(void *object, int field, void *value) { static_cast<Value *>(object)->object->fields.emplace_back(field, *static_cast<Value *>(value)); }
void *janus_list() { return new Value(list_of({})); }
void janus_append(void *list, void *value) { static_cast<Value *>(list)->items->push_back(*static_cast<Value *>(value)); }
void janus_free(void *value) { delete static_cast<Value *>(value); }
const char *janus_message() { return message.c_str(); }
int janus_kind(int n) { return n < int(result.size()) ? int(result[n].kind) : -1; }
double janus_result_number(int n) { return result[n].number; }
int janus_result_dims(int n) { return int(result[n].tensor->sizes.size()); }
int janus_result_truth(int n) { return result[n].tensor->truth; }
const int64_t *janus_result_sizes(int n) { return result[n].tensor->sizes.data(); }
const float *janus_result_data(int n) { return result[n].tensor->data; }
void janus_seed(int n, const float *grad) { Tensor *t = result[n].tensor.get(); if (t->wants) { float *g = t->gradient(); for (int64_t i = 0; i < t->count(); i++) g[i] += grad[i]; } }
void janus_backward() { for (size_t i = tape.size(); i-- > 0;) tape[i](); }
const float *janus_gradient(void *value) { auto &t = static_cast<Value *>(value)->tensor; return t->grad.empty() ? nullptr : t->grad.data(); }
void janus_clear() { tape.clear(); result.clear(); }
}
