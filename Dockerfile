# SPDX-License-Identifier: Apache-2.0
# The commands of README.md, which tests/readme_test.py compares with these:
#   docker build -t sherd:local .
#   docker run sherd:local run -n 2 -- sherd train
FROM debian:12
RUN apt-get update && apt-get install -y --no-install-recommends git g++ make python3
COPY . /sherd
WORKDIR /sherd
RUN make build
RUN cmake --install build/release --prefix /usr/local
ENTRYPOINT ["sherd"]
