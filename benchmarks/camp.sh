#!/bin/bash
# scratch/camp.sh SECONDS
export CUDA_MPS_PIPE_DIRECTORY=/tmp/mps CUDA_MPS_LOG_DIRECTORY=/tmp/mpslog; mkdir -p /tmp/mps /tmp/mpslog
nvidia-cuda-mps-control -d 2>/dev/null
export XLA_PYTHON_CLIENT_PREALLOCATE=false PYTHONPATH=$PWD PYTHONUNBUFFERED=1
b=$(date +%s)
go() { python -m emergo.papers $1 --curves ${*:3} --probes emergo.engine:gradient_probe --out /tmp/camp-$2 --seconds $S > $OUT/$2-$RANDOM.log 2>&1 & sleep 0.5; }
S=$1
go zucchet2025/fig3 fig3 left middle right
go zucchet2025/fig13 fig13
go zucchet2025/fig13 fig13
go zucchet2025/fig13 fig13
( while sleep 60; do echo "$(( $(date +%s) - b )) s: $(ls /tmp/camp-fig3/runs /tmp/camp-fig3/*/runs 2>/dev/null | wc -l) $(ls /tmp/camp-fig13/runs /tmp/camp-fig13/*/runs 2>/dev/null | wc -l) $(nvidia-smi --query-gpu=utilization.gpu,memory.used --format=csv,noheader)"; done ) &
W=$!
wait %1 %2 %3 %4
kill $W
echo "trained after $(( $(date +%s) - b )) s"
for f in fig3 fig13; do python - <<P
from emergo.papers._make import add_figure_records
print(add_figure_records("/tmp/camp-$f", to="/tmp/rec-$f"))
P
tar -C /tmp -czf $OUT/rec-$f.tgz rec-$f; done
echo "packed after $(( $(date +%s) - b )) s"
tail -n 5 $OUT/*.log; ls -la $OUT; find /tmp/camp-fig3 -maxdepth 2 | head -20
