# An image of `meerkat serve`. docs/deploy.md says how to run it.
FROM rust:1.95-bookworm AS build
WORKDIR /src
COPY . .
RUN cargo install --path crates/surface-cli --locked --profile dist --root /out

FROM debian:bookworm-slim
# Certificates for vendors' addresses; git for the tools that work in a folder.
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates git && rm -rf /var/lib/apt/lists/*
COPY --from=build /out/bin/meerkat /usr/local/bin/meerkat
RUN useradd --uid 7670 --no-create-home --home-dir /var/lib/meerkat --shell /usr/sbin/nologin meerkat
RUN install -d -m 0700 -o meerkat -g meerkat /var/lib/meerkat
USER meerkat
WORKDIR /var/lib/meerkat
# A folder in the volume: the volume itself may get other permissions from whoever mounts it.
ENV MEERKAT_DATA_DIR=/var/lib/meerkat/data MEERKAT_PROJECTION__ENABLED=false
VOLUME /var/lib/meerkat
EXPOSE 7670
HEALTHCHECK --interval=10s --timeout=5s --start-period=20s CMD ["bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/7670 && printf 'GET /readyz HTTP/1.0\\r\\n\\r\\n' >&3 && read -r _ status _ <&3 && [ \"$status\" = 200 ]"]
ENTRYPOINT ["meerkat"]
CMD ["serve", "--rest", "--rpc", "--mcp", "--listen", "0.0.0.0:7670"]
