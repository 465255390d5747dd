"""prof.py CASE VARIANT OUT [trace]"""
import sys, time, gzip, glob, json, collections, os
sys.path.insert(0, os.path.dirname(__file__))
b = time.time()
import jax, jax.numpy as jnp
from emergo.bench._training import Case, median_seconds
from emergo.engine._cost import compile_chunk, memory_of
from emergo.engine._program import Program, start
from emergo.engine import Run
CASES = {"chain": Case(1, 3, 25, 50, 8, "fp32", chain=True), "chain2": Case(1, 3, 25, 50, 2, "fp32", chain=True), "two": Case(2, 4, 256, 64, 64, "bf16"), "one": Case(1, 1, 256, 64, 128, "bf16"),
         "recall": Case(4, 4, 65, 256, 64, "bf16", recall=True)}
name, variant, out = sys.argv[1:4]
case = CASES[name]
if variant != "base":
    import variants; variants.use(variant)
program, device = Program.of(case.config), jax.devices()[0]
starts = [start(program, Run(case.config, s)) for s in range(case.runs)]
compiled = compile_chunk(program, starts[0], case.runs, device, memory_of(device), tuned=True)
slots = jax.tree.map(lambda *l: jnp.stack(l), *starts); del starts
due = jnp.zeros(case.runs, jnp.int32)
def train(k):
    global slots
    slots, m = compiled.run(slots, jnp.int32(k), due)
    return slots, m
m = jax.block_until_ready(train(1))[1]
ready = time.time() - b
ev = min(median_seconds(lambda: train(0)) for _ in range(3))
once = max((median_seconds(lambda: train(5), 3) - ev) / 5, 1e-6)
count = max(3, int(float(os.environ.get("SECS", "0.8")) / once))
per = (median_seconds(lambda: train(count), 3) - ev) / count / case.runs
import resource
def cpu():
    r = resource.getrusage(resource.RUSAGE_SELF); return r.ru_utime + r.ru_stime
def used(k):
    b0 = cpu(); jax.block_until_ready(train(k)); return cpu() - b0
cpu_ms = (min(used(count) for _ in range(2)) - min(used(0) for _ in range(2))) / count / case.runs * 1e3
print(json.dumps({"cpu_ms": cpu_ms, "case": name, "variant": variant, "ms": 1e3 * per, "ready_s": round(ready, 1), "loss": float(jnp.mean(m["loss"])), "train_loss": float(jnp.mean(m["train_loss"]))}), flush=True)
if variant == "equal" or (len(sys.argv) > 4 and "equal" in sys.argv[4:]):
    pass
if "trace" in sys.argv:
    hlo = compiled.run.as_text()
    gzip.open(f"{out}/{name}-{variant}.hlo.gz", "wt").write(hlo)
    opts = jax.profiler.ProfileOptions(); opts.host_tracer_level = 0; opts.python_tracer_level = 0
    d = f"/tmp/trace-{name}-{variant}"
    jax.profiler.start_trace(d, profiler_options=opts)
    jax.block_until_ready(train(10))
    jax.profiler.stop_trace()
    f = glob.glob(d + "/**/*.xplane.pb", recursive=True)[0]
    data = jax.profiler.ProfileData.from_file(f)
    sums, counts = collections.Counter(), collections.Counter()
    for plane in data.planes:
        if "GPU" not in plane.name and "CPU" not in plane.name: continue
        for line in plane.lines:
            for e in line.events:
                k = (plane.name[:20], line.name[:30], e.name[:160]); sums[k] += e.duration_ns; counts[k] += 1
    with open(f"{out}/{name}-{variant}.kernels.csv", "w") as w:
        for k, v in sums.most_common(): w.write("\t".join(map(str, (v / 1e6, counts[k], *k))) + "\n")
    print("traced", time.time() - b, flush=True)
