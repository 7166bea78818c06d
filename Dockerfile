# The image of a oncekey node. It brings no database: name one with DATABASE_URL.
FROM rust:1.95-bookworm AS build
WORKDIR /src
COPY . .
RUN cargo build --release --locked

FROM debian:bookworm-slim
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --system --home-dir /var/lib/oncekey --create-home oncekey
COPY --from=build /src/target/release/oncekey /usr/local/bin/oncekey
USER oncekey
WORKDIR /var/lib/oncekey
ENV ONCEKEY_LISTEN=0.0.0.0:8080 ONCEKEY_LOG=json
EXPOSE 8080
# SIGTERM drains; give it longer than limits.drain before it is killed.
STOPSIGNAL SIGTERM
ENTRYPOINT ["oncekey"]
CMD ["serve"]
